"""Does the damage, or the fault, still act after the step? Answered by taking the next steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from forensics.diagnose.bisection_result import FaultKind, Growth, Origin, Persistence
from forensics.errors import NotReplayableError
from forensics.record.parameters import tracked_parameters
from forensics.record.recipe import Training
from forensics.replay.rerun.memory_state import MemoryState, put_back_update
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session
from forensics.replay.suspects import Audit, IsBad, any_bad
from forensics.replay.tracing.step_forensics import audit_step
from forensics.replay.tracing.tensor_stats import is_float, nonfinite_kind

FURTHER = 5
"""Steps to take after the bad one: enough where none of them is bad, or most are."""

UNDECIDED = 20
"""Steps more where some are: values that have just grown to the edge of a range pass it in some
batches and not in others, and in more of them as they grow on."""

SHARE = 0.25
"""Of these, the share that is bad from which the fault acts on. What is a matter of chance (a
random number rounded to 1, a rare sample) strikes a few per cent of the steps."""

_GUARDED = frozenset({"loss", "grad", "exception"})
"""What a guard sees before the update: bad gradients and losses, as a GradScaler and a careful
loop do. What goes bad in the optimizer, or beside it, is behind the guard's back."""
_ONCE = ("resume",)
_BEHIND_THE_GUARD = ("optimizer", "scheduler", "ema")
_PASSING = frozenset({"norm", *_GUARDED})
_UPDATED = frozenset({"param", "optimizer", "ema"})


def persistence(
    session: Session,
    before: MemoryState,
    *,
    origin: Origin | None = None,
    growth: Growth | None = None,
    reproduces: bool | None = None,
    further: int = FURTHER,
    is_bad: IsBad = any_bad,
    audit: Audit = audit_step,
) -> Persistence:
    """Judge a fault as if a guard had withheld the update of the bad step.

    The guard is what a GradScaler's skip is: where the loss or a gradient is bad, or the step
    raises, parameters, optimizer states and averages are put back to before the step; buffers,
    loss scale, schedule and random numbers stay as the step left them. A loop that has put its
    parameters back itself is left alone. Then the next ``further`` steps are taken, each under
    the guard. When most of them are bad, or any at the end of a growth, it is *persistent*: the
    fault acts on, or its damage is still there (a poisoned running variance, a moment that
    overflowed in the optimizer, a learning rate of NaN). Where some are bad, ``UNDECIDED`` more
    decide. Steps in which the loss scale is still being lowered towards 1 are the scaler's search,
    and are not counted. Otherwise it is *transient*; so is what no replay reproduces.

    A fault of what was applied (nothing is bad) persists when most of the next steps show it
    again, the parameters put back after each. Two of them are decided by what they are: a schedule
    that ran ahead of the optimizer stays ahead, and a resume without some state happens once.

    Args:
        session: left somewhere after the bad step.
        before: the state just before the bad step.
        origin: where the fault is, as far as it is known.
        growth: what grew until then, or None.
        reproduces: what ``again`` said.
        further: steps to take after the bad one; fewer where the recorded run ends before.
        is_bad: what makes a step bad.
        audit: runs the next step and tells where its fault is: for a fault of what was applied.

    Returns:
        Where no further step can be taken: PERSISTENT if something is left bad, else UNKNOWN.
    """
    if reproduces is False:
        return Persistence.TRANSIENT
    session.restore(before)
    if origin is not None and origin.kind is FaultKind.APPLIED:
        return _of_applied(session, before, origin, further, audit)
    step = session.run_step()
    left = _withhold(session, before, step, is_bad, origin)
    del before  # the next steps are copied one by one
    unseen = bool(step.bad) and not any(name.startswith(tuple(_PASSING)) for name in step.bad)
    bad = _guarded_steps(session, step, further, is_bad, unseen)
    if not bad:
        return Persistence.PERSISTENT if left else Persistence.UNKNOWN
    grows = growth is not None or (origin is not None and origin.kind is FaultKind.GROWTH)
    if grows or not 0 < sum(bad) <= len(bad) / 2:
        return _verdict(any(bad) if grows else 2 * sum(bad) > len(bad))
    bad += _guarded_steps(session, step, UNDECIDED, is_bad, unseen)
    return _verdict(sum(bad) >= SHARE * len(bad))


def _of_applied(
    session: Session, before: MemoryState, origin: Origin, further: int, audit: Audit
) -> Persistence:
    if origin.operator in _ONCE:
        return Persistence.TRANSIENT
    if origin.phase == "scheduler":
        return Persistence.PERSISTENT
    acts: list[bool] = []
    for _ in range(_steps_left(session, further + 1)):
        try:
            found = audit(session)
        except NotReplayableError:
            raise
        except Exception:  # noqa: BLE001 - a recipe's batch() raises what it likes at its end
            break
        put_back_update(session.training, before, moments=False)
        acts.append(found is not None and found.operator == origin.operator)
    later = acts[1:]
    return _verdict(2 * sum(later) > len(later)) if later else Persistence.UNKNOWN


def _verdict(persists: bool) -> Persistence:
    return Persistence.PERSISTENT if persists else Persistence.TRANSIENT


def _guarded_steps(
    session: Session, last: ReplayedStep, further: int, is_bad: IsBad, unseen: bool
) -> list[bool]:
    """Take the next steps under the guard; which of those that count are bad?

    Where no row showed the fault, but only what the step left behind, the guard leaves no trace of
    it: ``unseen`` counts a step that it withheld.
    """
    found: list[bool] = []
    searching = True
    for _ in range(_steps_left(session, further + _halvings(last))):
        try:
            with _guard(session.training) as withheld:
                step = session.run_step()
        except NotReplayableError:
            raise
        except Exception:  # noqa: BLE001 - a recipe's batch() raises what it likes at its end
            break
        bad = is_bad(step) or (unseen and bool(withheld))
        searching = searching and bad and _scale_fell(last, step)
        last = step
        if not searching:
            found.append(bad)
        if len(found) == further:
            break
    return found


@contextmanager
def _guard(training: Training) -> Iterator[list[Optimizer]]:
    """While it lasts, an optimizer that holds a bad gradient does not step.

    No copy of the state is needed for it. Yields the optimizers that were withheld, as they are.
    """
    missing, withheld = object(), list[Optimizer]()
    own = [(o, vars(o).get("step", missing)) for o in training.optimizers]

    def guarded(optimizer: Optimizer) -> Callable[..., Any]:
        step = optimizer.step

        def check() -> None:
            held = (p.grad for group in optimizer.param_groups for p in group["params"])
            if not _all_finite(held):
                raise _WithheldError

        def guarded_step(*args: Any, **kwargs: Any) -> Any:
            closure, *rest = args or (kwargs.pop("closure", None),)
            try:
                if closure is not None:  # the gradients are there once it has run
                    return step(_then(closure, check), *rest, **kwargs)
                check()
                return step(*rest, **kwargs)
            except _WithheldError:
                withheld.append(optimizer)
                return None

        return guarded_step

    for optimizer, _ in own:
        optimizer.step = guarded(optimizer)  # type: ignore[method-assign]
    try:
        yield withheld
    finally:
        for optimizer, before in own:
            if before is missing:
                del optimizer.step
            else:
                optimizer.step = before  # type: ignore[method-assign]


class _WithheldError(Exception):
    """Leaves an optimizer's ``step`` before it has changed anything."""


def _then(closure: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        loss = closure(*args, **kwargs)
        check()
        return loss

    return checked


def _withhold(
    session: Session, before: MemoryState, step: ReplayedStep, is_bad: IsBad, origin: Origin | None
) -> bool:
    """Act as the guard; is anything left bad?"""
    places = {name.partition(":")[0] for name in step.bad}
    behind = origin is not None and origin.phase in _BEHIND_THE_GUARD
    seen = bool(places & _GUARDED) or not _finite_gradients(session.training)
    acts = (seen and not behind) or (is_bad(step) and not places)
    # A loop that saved its weights has a guard of its own: what that one forgot is left bad.
    acts = acts and ("param" in places or not places & _UPDATED)
    if acts:
        put_back_update(session.training, before)
    return bool(places - _PASSING - (_UPDATED if acts else frozenset()))


def _finite_gradients(training: Training) -> bool:
    """Are the gradients finite that are still held? A loop need not have shown them.

    What no optimizer holds is left out: nobody zeroes its gradient, so one bad step lasts.
    """
    parameters = tracked_parameters(training.model, training.optimizers)
    return _all_finite(p.grad for _, p in parameters)


def _all_finite(gradients: Iterable[Tensor | None]) -> bool:
    return not any(nonfinite_kind(g) for g in gradients if g is not None and is_float(g))


def _scale_fell(last: ReplayedStep, step: ReplayedStep) -> bool:
    """Was this step's loss scale lower than the last one's, and still above 1?"""
    if last.log is None or step.log is None:
        return False
    return 1.0 < step.log.scaler_scale < last.log.scaler_scale


def _halvings(step: ReplayedStep) -> int:
    """How often its loss scale can be halved before it is 1."""
    scale = step.log.scaler_scale if step.log is not None else 1.0
    return max(0, math.frexp(scale)[1] - 1) if math.isfinite(scale) else 0


def _steps_left(session: Session, wanted: int) -> int:
    """Steps of the recorded run that are left, at most ``wanted``; past its end all are tried."""
    left = session.config.steps - session.step_index
    return min(wanted, left) if left > 0 else wanted
