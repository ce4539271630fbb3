"""Is it really so, and which samples are to blame? Each answer is a replay from one state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from forensics.diagnose.bisection_result import Origin
from forensics.errors import NotReplayableError
from forensics.record.assembly import told
from forensics.record.extra_columns import param_digest
from forensics.record.parameters import tracked_parameters
from forensics.replay.proof.delta_debugging import Blame, Indices, Trial, blame
from forensics.replay.rerun.changes import Changes, batch_size
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session

SAMPLE_TRIALS = 64
"""Replays of one step to find its guilty samples with: enough for three in a batch of 1,024."""

IsBad = Callable[[ReplayedStep], bool]
Audit = Callable[[Session], Origin | None]
"""Runs the session's next step; tells what was applied wrongly in it, or None."""

_PLACES = (
    "exception",
    "lr",
    "scale",
    "loss",
    "grad",
    "norm",
    "buffer",
    "param",
    "optimizer",
    "ema",
    "state",
)
"""Where a step goes bad, most telling first: what comes later in the step follows from it."""
IN_THE_ROW = frozenset({"exception", "lr", "scale", "loss", "grad", "norm"})


@dataclass(frozen=True, kw_only=True)
class Again:
    """What the same step does when it is run again.

    Attributes:
        reproduces: every replay went bad in the same way.
        alike: every replay came to the same bits.
        replays: how many were made.
    """

    reproduces: bool
    alike: bool
    replays: int


@dataclass(frozen=True, kw_only=True)
class GuiltySamples:
    """Which samples of a batch are to blame.

    Attributes:
        samples: indices over the step's micro-batches in a row, at most half of them; empty where
            the batch is not to blame or cannot be taken apart.
        batch_size: samples in the step's batch; 0 where it holds no tensor.
        note: one clause of what the indices alone do not say; may be empty.
        replays: how many were made.
    """

    samples: Indices = ()
    batch_size: int = 0
    note: str = ""
    replays: int = 0


def any_bad(step: ReplayedStep) -> bool:
    """Is anything not finite?"""
    return bool(step.bad)


def place_of(step: ReplayedStep) -> str:
    """Where a step went bad: ``loss``, ``grad``, ``norm``, ``buffer`` and so on.

    An exception is told apart by its type: ``exception:ValueError``. Empty for a sound step.
    """
    places = {name.partition(":")[0] for name in step.bad}
    first = next((place for place in _PLACES if place in places), "")
    if first == "exception" and step.error is not None:
        return f"exception:{type(step.error).__name__}"
    return first


def same_fault(as_in: ReplayedStep, is_bad: IsBad = any_bad) -> IsBad:
    """Is another replay bad in the same way: in the same place, and by the same exception?"""
    place = place_of(as_in)
    return lambda step: is_bad(step) and place_of(step) == place


def again(
    session: Session,
    before: MemoryState,
    n: int = 3,
    *,
    is_bad: IsBad = any_bad,
    audit: Audit | None = None,
) -> Again:
    """Run the step ``n`` times from the same state, unchanged.

    Args:
        session: left after the last replay.
        before: the state just before the bad step.
        n: replays, at least 1.
        is_bad: what makes the step bad.
        audit: for a fault of what was applied, in place of ``is_bad``: all must find the same.
    """
    seen: list[tuple[object, ...]] = []
    bad: list[str] = []
    for _ in range(n):
        session.restore(before)
        if audit is not None:
            origin = audit(session)
            bad.append(origin.operator if origin else "")
            seen.append(())
        else:
            step = session.run_step()
            bad.append(f"at {place_of(step)}" if is_bad(step) else "")
            seen.append((step.log, step.exception))
        seen[-1] += (param_digest(_parameters(session)),)
    return Again(
        reproduces=bool(bad[0]) and len(set(bad)) == 1,
        alike=all(repr(entry) == repr(seen[0]) for entry in seen),  # NaN is not equal to itself
        replays=n,
    )


def guilty_samples(
    session: Session,
    before: MemoryState,
    *,
    is_bad: IsBad = any_bad,
    as_in: ReplayedStep | None = None,
    grew: bool = False,
    budget: int = SAMPLE_TRIALS,
) -> GuiltySamples:
    """Which samples the step would be sound without, by delta debugging over its batch.

    A part of the batch goes bad in the same way when it does so in the same place (the loss, a
    gradient, a buffer …): a batch of one that BatchNorm refuses is another fault.

    Args:
        session: left after the last replay.
        before: the state just before the bad step.
        is_bad: what makes the step bad.
        as_in: the step as it went bad; run once more where it is not given.
        grew: it is the end of a growth, which no sample is to blame for: nothing is searched.
        budget: replays at most.
    """
    step = before.step
    session.restore(before)
    size = sum(map(batch_size, session.batch(step)))
    if size < 2:
        return GuiltySamples(batch_size=size, note=_too_few(size))
    if grew:
        return GuiltySamples(batch_size=size, note="not a bad batch: it is the end of a growth")
    if as_in is None:
        session.restore(before)
        as_in = session.run_step()
    same, deep = same_fault(as_in, is_bad), place_of(as_in) not in IN_THE_ROW
    refusals: list[str] = []

    def try_part(part: Indices) -> Trial:
        session.restore(before)
        try:
            replayed = session.run_step(changes=Changes(keep={step: part}), check_state=deep)
        except NotReplayableError as error:
            refusals.append(error.what)
            return Trial.UNTESTABLE
        except Exception as error:  # noqa: BLE001 - a recipe's select() raises what it likes
            refusals.append(told(error))
            return Trial.UNTESTABLE
        if same(replayed):
            return Trial.BAD
        if replayed.exception:
            refusals.append(replayed.exception)
            return Trial.UNTESTABLE
        return Trial.GOOD

    found = blame(size, try_part, budget=budget)
    few = 2 * len(found.guilty) <= size
    return GuiltySamples(
        samples=found.guilty if few else (),
        batch_size=size,
        note=_note(found, refusals) if few else _most_of(found.guilty, size),
        replays=found.trials,
    )


def _parameters(session: Session) -> list[tuple[str, Tensor]]:
    training = session.training
    return list(tracked_parameters(training.model, training.optimizers))


def _too_few(size: int) -> str:
    return "a batch of one sample: nothing to leave out" if size else "a batch without tensors"


def _most_of(guilty: Indices, size: int) -> str:
    return f"{len(guilty)} of {size} samples go bad by themselves: not a few bad ones"


def _note(found: Blame, refusals: list[str]) -> str:
    if not found.testable:
        return f"not testable: with a part of the batch the step raises {refusals[0]}"
    if found.everywhere:
        return "every part of the batch goes bad on its own: no single sample is to blame"
    if not found.exact:
        return "the search ran out of replays: the guilty ones are among these"
    if not found.guilty:
        return "only all samples together go bad: no single sample is to blame"
    if refusals and len(found.guilty) > 1:
        return f"parts of these cannot be run alone: {refusals[0]}"
    return ""
