"""From a suspicion to the first bad step: which state to start from, and the replay up to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forensics.replay.detection import Detector
from forensics.replay.narrowing import Suspicion
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session
from forensics.replay.start_states import StateSearch

AFFORDABLE = 500
"""Steps that may be replayed more than from the last sound state, where something grew: the root is
worth as much as the step, and small runs are where most people look."""
AFFORDABLE_FACTOR = 3
"""Or so many times the steps from the last sound state."""

OnStep = Callable[[int, int, int], None]
"""Told (first, step, last) before each step of a stretch."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The stretch to replay: from a state before ``limit`` up to ``until``.

    Attributes:
        start: no later state is started from.
        until: the last step to replay.
        marks: steps that are suspect already.
    """

    start: int
    until: int
    marks: tuple[int, ...] = ()


def stretch(
    suspicion: Suspicion, states: StateSearch, *, last_step: int, from_step: int | None
) -> Range | None:
    """What to replay; None where neither the log nor a state is bad.

    Args:
        suspicion: what the log says.
        states: what the saved states say.
        last_step: the last step that may be replayed.
        from_step: where the user wants to begin.
    """
    step, bad_state = suspicion.step, states.first_bad
    if bad_state is not None and (step is None or bad_state <= step):
        # The state before that step is bad, so an earlier step made it so; unless it is bad only
        # in a rate or a scale that came into force with the step, which its own row then shows.
        until = bad_state if step == bad_state else max(bad_state - 1, 0)
        good = states.last_good if states.last_good is not None else 0
        return Range(start=_earliest(good, from_step), until=until)
    if step is None:
        return None
    start = step
    root = suspicion.root_step
    if root is not None and _affordable(root, step, states):
        start = root
    return Range(start=_earliest(start, from_step), until=min(step, last_step), marks=(step,))


def unlogged_stretch(
    suspicion: Suspicion, *, last_step: int, from_step: int | None
) -> Range | None:
    """What to replay for a condition that no row fulfils, where steps have no row at all."""
    if suspicion.unlogged is None or suspicion.unlogged > last_step:
        return None
    return Range(start=_earliest(suspicion.unlogged, from_step), until=last_step)


def _earliest(start: int, from_step: int | None) -> int:
    return start if from_step is None else max(0, min(start, from_step))


def _affordable(root: int, step: int, states: StateSearch) -> bool:
    """May the replay begin before the root of a growth, rather than at the last sound state?"""
    steps = [0, *(s.step for s in states.verdicts if s.verdict != "bad")]
    near = max(s for s in steps if s <= step)
    far = max(s for s in steps if s <= root)
    return near - far <= max(AFFORDABLE, AFFORDABLE_FACTOR * (step - near))


def stand_before(session: Session, wanted: Range, judge: RowJudge, on_step: OnStep) -> Detector:
    """Go to the newest sound state at or before the stretch's start, ready to replay from there.

    A state that is bad although its health file says otherwise is passed over.
    """
    start = session.go_to(wanted.start)
    while judge.by_state and start > 0 and session.bad_state():
        start = session.go_to(start - 1)
    return Detector(
        session,
        judge,
        deep=judge.by_state,
        on_step=lambda step: on_step(start, step, wanted.until),
    )
