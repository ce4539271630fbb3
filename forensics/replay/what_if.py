"""What if it were done otherwise? One change at a time, each tried by replay."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from forensics.diagnose.bisection_result import WhatIf
from forensics.errors import NotReplayableError
from forensics.replay.changes import Changes
from forensics.replay.memory_state import MemoryState
from forensics.replay.replayed_step import ReplayedStep
from forensics.replay.session import Session
from forensics.replay.suspects import IN_THE_ROW, IsBad, any_bad, place_of

FURTHER_STEPS = 50
"""Steps after the bad one that a change must carry the run on for, by default."""

WITHOUT_SAMPLES = "without the guilty samples"
WITHOUT_BATCH = "without the batch"
SCALE_ONE = "loss scale 1"
HALF_RATE = "half the learning rate"
CLIP = "clip at"
"""How a change is called; precisions by their names."""

_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_TYPICAL_OF = 200
"""Rows before the bad step of whose norms the median is taken for a threshold, which is what a
clip is usually set to be near; fewer rows where the growth began later."""

Announce = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A change that is going to be tried.

    Attributes:
        change: what it is called.
        changes: how it is brought about.
        until: last step to replay.
        skip_first: leave the whole first step out.
        finite: what follows when nothing goes bad.
        bad: what follows when something does.
        refused: why it cannot be brought about; then it is not tried.
    """

    change: str
    changes: Changes
    until: int
    skip_first: bool = False
    finite: str = ""
    bad: str = ""
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class _AsItWas:
    """The bad step, replayed as recorded.

    Attributes:
        step: what it came to.
        seconds: what it took.
        autocast: the half precisions that an autocast was entered with.
        weights: the half precisions that parameters are in.
    """

    step: ReplayedStep
    seconds: float
    autocast: frozenset[str]
    weights: frozenset[str]

    @property
    def precisions(self) -> str:
        """What it was computed in."""
        return " and ".join(sorted(self.autocast | self.weights)) or "fp32"


def what_if(
    session: Session,
    before: MemoryState,
    *,
    samples: Sequence[int] = (),
    further_steps: int = FURTHER_STEPS,
    is_bad: IsBad = any_bad,
    announce: Announce | None = None,
) -> tuple[WhatIf, ...]:
    """Try every change that makes sense from the bad step on: precision, loss scale, data.

    A change is *finite* when the bad step and the steps after it are. Where a loss scaler is at
    work, later steps that it skips while the loss is finite and the scale above 1 are its search
    for a scale, and no fault. A trial ends at its first bad step.

    Args:
        session: left after the last trial.
        before: the state just before the bad step.
        samples: the guilty ones; where there are none, the batch is left out as a whole.
        further_steps: steps to go on for; fewer where the recorded run ends before.
        is_bad: what makes a step bad.
        announce: told, before the first trial, how many there are and about how long they take.
    """
    was = _as_it_was(session, before)
    step = before.step
    until = last_step(session, step, further_steps)
    plans = list(_plans(session, step, until, samples, was))
    trials = sum(not plan.refused for plan in plans)
    _announce(announce, trials, trials * (until - step + 1), was.seconds)
    deep, raises = place_of(was.step) not in IN_THE_ROW, bool(was.step.exception)
    found = []
    for plan in plans:
        session.restore(before)
        found.append(_try(session, plan, step, is_bad, deep, raises))
    return tuple(found)


def what_if_from(
    session: Session,
    root_step: int,
    first_bad_step: int,
    *,
    further_steps: int = FURTHER_STEPS,
    is_bad: IsBad = any_bad,
    deep: bool = True,
    announce: Announce | None = None,
) -> tuple[WhatIf, ...]:
    """Try what must begin earlier: half the learning rate, and a clip where nothing clips.

    The training is built anew from the newest saved state at or before the root step, so a state
    in memory is not needed any more: let go of it first, for it takes as much room again.

    Args:
        session: left after the last trial.
        root_step: where the growth began, else the bad step itself.
        first_bad_step: where it went bad as recorded.
        further_steps: steps to go on for after it.
        is_bad: what makes a step bad.
        deep: look at the state after each step, too, not at its row alone.
        announce: as of ``what_if``.
    """
    plans = list(_early_plans(session, root_step, first_bad_step, further_steps))
    found = []
    for i, plan in enumerate(plans):
        start = session.go_to(root_step)
        if i == 0:
            began = time.perf_counter()
            session.run_step()
            _announce(
                announce,
                len(plans),
                len(plans) * (plan.until - start + 1),
                time.perf_counter() - began,
            )
            session.go_to(root_step)
        found.append(_try(session, plan, first_bad_step, is_bad, deep, False))
    return tuple(found)


def last_step(session: Session, first_bad_step: int, further: int) -> int:
    """The last step of a trial: not past the end of the recorded run."""
    return max(first_bad_step, min(first_bad_step + further, session.config.steps - 1))


def _as_it_was(session: Session, before: MemoryState) -> _AsItWas:
    session.restore(before)
    weights = {_HALVES[p.dtype] for p in session.model.parameters() if p.dtype in _HALVES}
    seen: set[str] = set()
    entered: Any = autocast.__enter__

    def enter(self: Any) -> Any:
        if self._enabled and self.fast_dtype in _HALVES:
            seen.add(_HALVES[self.fast_dtype])
        return entered(self)

    autocast.__enter__ = enter  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        step = session.run_step()
    finally:
        autocast.__enter__ = entered  # type: ignore[method-assign]
    took = time.perf_counter() - began
    return _AsItWas(step=step, seconds=took, autocast=frozenset(seen), weights=frozenset(weights))


def _plans(
    session: Session, step: int, until: int, samples: Sequence[int], was: _AsItWas
) -> Iterator[Plan]:
    """What there is to try at the bad step."""
    yield from _precisions(until, was)
    scale = was.step.log.scaler_scale if was.step.log is not None else 1.0
    if session.training.scaler.is_enabled() and scale != 1.0:
        yield Plan(
            change=SCALE_ONE,
            changes=Changes(loss_scale=1.0),
            until=until,
            finite=f"the loss scale of {scale:g} is too large here",
            bad="not the scaler",
        )
    if samples:
        yield Plan(
            change=WITHOUT_SAMPLES,
            changes=Changes(drop={step: tuple(samples)}),
            until=until,
            finite="the data",
            bad="not these samples alone",
        )
    elif until > step:
        yield Plan(
            change=WITHOUT_BATCH,
            changes=Changes(),
            until=until,
            skip_first=True,
            finite="this batch, or what was drawn for it",
            bad="not the data",
        )


def _precisions(until: int, was: _AsItWas) -> Iterator[Plan]:
    used, halves = was.precisions, was.autocast | was.weights
    refused = f"the parameters themselves are in {used}" if was.weights else ""
    if halves:
        yield Plan(
            change="fp32",
            changes=Changes(precision="fp32"),
            until=until,
            finite=f"the range or the rounding of {used}",
            bad="not a precision problem: fp32 goes bad, too",
            refused=refused,
        )
    if "fp16" in halves:
        yield Plan(
            change="bf16",
            changes=Changes(precision="bf16"),
            until=until,
            finite="the range of fp16: bf16 has that of fp32",
            bad="not the range of fp16",
            refused=refused,
        )
    yield Plan(
        change="fp64",
        changes=Changes(precision="fp64"),
        until=until,
        finite=f"the range or the rounding of {used}",
        bad="mathematics, not rounding: fp64 goes bad, too",
    )


def _early_plans(
    session: Session, root_step: int, first_bad_step: int, further: int
) -> Iterator[Plan]:
    until = last_step(session, first_bad_step, further)
    yield Plan(change=HALF_RATE, changes=Changes(lr_factor=0.5), until=until)
    rows = [session.recorded(s) for s in range(max(0, root_step - _TYPICAL_OF), first_bad_step)]
    if session.config.max_norm is not None or any(
        row is not None and row.get("grad_l2_post_clip") is not None for row in rows
    ):
        return  # it clips already
    norms = [row["grad_l2_pre_clip"] for row in rows if row and "grad_l2_pre_clip" in row]
    norms = [norm for norm in norms if math.isfinite(norm) and norm > 0]
    limit = _two_digits(statistics.median(norms)) if norms else 1.0
    yield Plan(change=f"{CLIP} {limit:g}", changes=Changes(max_norm=limit), until=until)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _announce(announce: Announce | None, trials: int, steps: int, seconds: float) -> None:
    if announce is not None and trials:
        about = steps * seconds
        length = f"{about:.0f} s" if about < 120 else f"{about / 60:.0f} min"
        announce(f"{trials} changes to try: up to {steps:,} steps, about {length}")


def _try(
    session: Session, plan: Plan, strict: int, is_bad: IsBad, deep: bool, raises: bool
) -> WhatIf:
    """Carry a trial through; where the change cannot be made, say why."""
    if plan.skip_first:
        session.step_index += 1
    start = session.step_index
    told = WhatIf(change=plan.change, from_step=start, until_step=start, finite=None)
    if plan.refused:
        return replace(told, note=f"cannot be tried: {plan.refused}")
    try:
        until, bad_step = _carry_on(session, plan, strict, is_bad, deep, raises)
    except NotReplayableError as error:
        return replace(told, note=f"cannot be tried: {error.what}")
    if until < start:
        return replace(told, note="cannot be tried: there are no data for a step after it")
    finite = bad_step is None
    # What goes bad only later says nothing about what made the bad step bad.
    note = plan.finite if finite else plan.bad if bad_step in (start, strict) else ""
    return replace(told, until_step=until, finite=finite, first_bad_step=bad_step, note=note)


def _carry_on(
    session: Session, plan: Plan, strict: int, is_bad: IsBad, deep: bool, raises: bool
) -> tuple[int, int | None]:
    """The last step that was replayed, and the bad one it ended at, or None."""
    first = session.step_index
    while session.step_index <= plan.until:
        try:
            step = session.run_step(
                changes=plan.changes, check_state=deep or session.step_index == plan.until
            )
        except NotReplayableError:
            raise
        except Exception:
            if session.step_index == first:
                raise
            break
        if step.step == first and step.exception and not raises:
            raise NotReplayableError(f"the step raises {step.exception}")
        if is_bad(step) and not (step.step != strict and _is_scaler_search(step)):
            return step.step, step.step
    return session.step_index - 1, None


def _is_scaler_search(step: ReplayedStep) -> bool:
    """A step that the loss scaler skips, and lowers its scale for."""
    places = {name.partition(":")[0] for name in step.bad}
    log = step.log
    return log is not None and log.skipped and log.scaler_scale > 1 and places <= {"grad", "norm"}
