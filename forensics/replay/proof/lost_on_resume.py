"""A resume that did not restore everything: which part was lost, proven by leaving it out.

Where a replay from a saved state leaves the record, the recorded process may have begun with less
than the state holds. So the stretch is replayed once more without the optimizer's state, without
the scaler's, without the schedule's, and without all of them: the one that gives the recorded rows
bit for bit is what the resume lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin
from forensics.record.recipe import Training
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session

_FURTHER = 3
"""Rows after the departure that must be the record, too: one may agree by chance."""
_NEAR = 2
"""Steps before the departure at which the loss is looked for: a state acts in the row after."""


@dataclass(frozen=True, kw_only=True)
class LostPart:
    """What a resume lost.

    Attributes:
        step: the first step without it.
        what: such as ``the optimizer's state``.
        phase: where it acts.
        rows: recorded rows that the replay without it gives bit for bit.
        seam: a new segment of the run begins at that step.
    """

    step: int
    what: str
    phase: str
    rows: int
    seam: bool


@dataclass(frozen=True)
class _Part:
    what: str
    phase: str
    drop: Callable[[Training], None]


def find_lost(session: Session, departure_step: int) -> LostPart | None:
    """The part of the state whose loss explains a departure; None where none does.

    Args:
        session: bit-exact; left anywhere.
        departure_step: the first row in which the replay is not the record.
    """
    if session.tolerance or departure_step <= 0:
        return None
    session.start()
    parts = _parts(session.training)
    seams = {segment.start_step for segment in session.manifest.segments[1:]}
    near = [s for s in range(departure_step, max(0, departure_step - _NEAR), -1) if s > 0]
    for step in sorted(near, key=lambda s: (s not in seams, -s)):
        before = _state_at(session, step)
        for part in parts:
            rows = _rows_without(session, part, before, departure_step + _FURTHER)
            if rows > departure_step - step:
                return LostPart(
                    step=step, what=part.what, phase=part.phase, rows=rows, seam=step in seams
                )
    return None


def lost_origin(lost: LostPart) -> Origin:
    """A lost part as the origin of what came after."""
    resume = "the resume" if lost.seam else "something"
    return Origin(
        kind=FaultKind.APPLIED,
        phase=lost.phase,
        operator="resume",
        chain=(ChainLink(phase=lost.phase, what="resume", name=lost.what),),
        summary=(
            f"{resume} at step {lost.step:,} lost {lost.what}: a replay without it gives the "
            f"{lost.rows:,} recorded rows from there on bit for bit, and one with it does not."
        ),
    )


def _state_at(session: Session, step: int) -> MemoryState:
    session.go_to(step)
    while session.step_index < step:
        session.run_step(check_state=False)
    return session.capture()


def _rows_without(session: Session, part: _Part, before: MemoryState, until: int) -> int:
    """How many rows are the record in a replay without a part; 0 where one is not."""
    session.restore(before)
    part.drop(session.training)
    rows = 0
    while session.step_index <= until and session.recorded(session.step_index) is not None:
        if session.departure(session.run_step(check_state=False)) is not None:
            return 0
        rows += 1
    return rows


def _parts(fresh: Training) -> list[_Part]:
    """What can be lost, each alone and all together.

    Args:
        fresh: the training as built, whose state is what a process without a checkpoint has.
    """
    begins = [copy.deepcopy(s.state_dict()) for s in fresh.schedulers]
    rates = [[group["lr"] for group in o.param_groups] for o in fresh.optimizers]

    def schedule(training: Training) -> None:
        _begin_schedules(training, begins, rates)

    scaler = fresh.scaler
    scales = scaler is not None and scaler.is_enabled()
    scale = copy.deepcopy(scaler.state_dict()) if scales else {}

    def scaling(training: Training) -> None:
        if scale:
            training.scaler.load_state_dict(copy.deepcopy(scale))

    def everything(training: Training) -> None:
        for drop in (_empty_optimizers, scaling, schedule):
            drop(training)

    found = [_Part("the optimizer's state", "optimizer", _empty_optimizers)]
    if scales:
        found.append(_Part("the loss scaler's state", "outside", scaling))
    if fresh.schedulers:
        found.append(_Part("the schedule's state", "scheduler", schedule))
    return [*found, _Part("everything but the weights", "optimizer", everything)][: _most(found)]


def _most(found: Sequence[_Part]) -> int:
    """All together is another case only where there is more than one part."""
    return len(found) + (len(found) > 1)


def _empty_optimizers(training: Training) -> None:
    for optimizer in training.optimizers:
        optimizer.state.clear()


def _begin_schedules(training: Training, begins: Sequence[Any], rates: Sequence[Any]) -> None:
    for scheduler, begin in zip(training.schedulers, begins, strict=True):
        scheduler.load_state_dict(copy.deepcopy(begin))
    for optimizer, groups in zip(training.optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = rate
