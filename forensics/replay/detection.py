"""Replaying a stretch of steps at the cost of training them, and standing before the first bad one.

Each step is judged by its own row, which is free. The whole state is looked at, and copied, only at
*waypoints*: so seldom that they take two hundredths of the time, and just before every step that is
suspect already. What went bad is then somewhere behind the last sound waypoint; the stretch is
replayed from there with waypoints ever closer, until the last one is the state just before the bad
step. Only one copy of the state is held at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from forensics.diagnose.bisection_result import Departure
from forensics.errors import NoBatchError
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session, Trace

IsBad = Callable[[ReplayedStep], bool]
OnStep = Callable[[int], None]
"""Told each step that is about to be replayed."""

WAYPOINT_SHARE = 0.02
"""Share of the time that waypoints may take: detection may cost 1.05 of plain training."""
_SHOWN_BY_THE_ROW = ("lr", "scale", "state:schedulers", "state:scaler")
_WARM_UP = 16
"""Steps before the first waypoint, so that its cost is held against something."""
_FINER = 8
"""Waypoints in a stretch that is replayed again: each round narrows it eightfold."""


@dataclass(kw_only=True)
class Passage:
    """What a stretch of replay came to.

    Attributes:
        first: the first step that was replayed.
        last: the last one on the way; the bad one where there is one.
        bad: the first bad step, or None.
        before: the state just before the bad step; None without one.
        departure: the first row that is not the recorded one, or None.
        compared: rows that were compared with a recorded one.
        unstable: a step that went bad once and not again from the same state, or None.
    """

    first: int
    last: int
    bad: ReplayedStep | None = None
    before: MemoryState | None = None
    departure: Departure | None = None
    compared: int = 0
    unstable: int | None = None

    @property
    def faithful_until(self) -> int | None:
        """The last step up to which the replay is the record; None where no row was compared."""
        if not self.compared:
            return None
        return self.last if self.departure is None else self.departure.step - 1


@dataclass
class Detector:
    """Replays forward from where the session stands.

    Args:
        session: at the step to begin with.
        is_bad: judges a step by its row.
        deep: look at the state at waypoints too, where not the row but the state may go bad.
        on_step: told each step.
        trace: wraps every step, as ``Session.run_step`` takes it.
    """

    session: Session
    is_bad: IsBad
    deep: bool = True
    on_step: OnStep = field(default=lambda step: None)
    trace: Trace | None = None
    passage: Passage = field(default_factory=lambda: Passage(first=0, last=-1), init=False)
    """Of the replay under way: what is known when it is interrupted."""
    _waypoint: MemoryState | None = field(default=None, init=False)

    def run(self, until: int, *, marks: Collection[int] = ()) -> Passage:
        """Replay up to ``until``, inclusive, or up to the first bad step.

        Args:
            until: the last step to replay.
            marks: steps before which the state is looked at and kept in any case: suspects.
        """
        first = self.session.step_index
        self.passage = passage = Passage(first=first, last=first - 1)
        self._waypoint = None
        end = self._pass(passage, until, set(marks), _Sparse())
        while end.hit is not None and end.exact is None:
            begin = self._return(first)
            spacing = _Every(max(1, (end.hit - begin + 1) // _FINER))
            again = Passage(first=begin, last=begin - 1)
            found = self._pass(again, end.hit, {end.hit}, spacing)
            if found.hit is None:
                passage.unstable = end.hit
            end = found
        if end.exact is not None:
            passage.bad, passage.before = end.exact, self._waypoint
            passage.last = end.exact.step
        self._waypoint = None
        return passage

    def _return(self, first: int) -> int:
        """Back to the last sound state; returns its step."""
        if self._waypoint is None:
            return self.session.go_to(first)
        self.session.restore(self._waypoint)
        return self._waypoint.step

    def _pass(self, passage: Passage, until: int, marks: set[int], plan: _Sparse | _Every) -> _End:
        """One run over a stretch; ends at its end or where something is bad."""
        session = self.session
        last: ReplayedStep | None = None
        while session.step_index <= until:
            step = session.step_index
            if self._kept != step and (step in marks or plan.due(step - passage.first)):
                began = time.perf_counter()
                if last is not None and (bad := self._bad_state()):
                    return self._found(last, bad)
                self._waypoint = None  # only one copy at a time
                self._waypoint = session.capture()
                plan.took(time.perf_counter() - began)
            self.on_step(step)
            last = self._step(step)
            self._compare(passage, last)
            if last.exception or self.is_bad(last):
                return self._found(last, ())
        if last is not None and (bad := self._bad_state()):
            return self._found(last, bad)
        return _End()

    def _step(self, step: int) -> ReplayedStep:
        """The next step; where its data cannot be had, it ends as one that raises."""
        try:
            return self.session.run_step(trace=self.trace, check_state=False)
        except NoBatchError as error:
            return ReplayedStep(
                step=step, log=None, exception=error.what, error=error, bad=("exception",)
            )

    @property
    def _kept(self) -> int | None:
        return None if self._waypoint is None else self._waypoint.step

    def _found(self, last: ReplayedStep, state: tuple[str, ...]) -> _End:
        """The end at a bad step, or at one that left a bad state."""
        if self._kept != last.step:
            return _End(hit=last.step)
        exact = replace(last, bad=tuple(dict.fromkeys((*last.bad, *state))))
        return _End(hit=last.step, exact=exact)

    def _bad_state(self) -> tuple[str, ...]:
        """What is bad in the state; a rate or a scale is bad in the step that uses it: its row."""
        if not self.deep:
            return ()
        bad = self.session.bad_state()
        return tuple(name for name in bad if not name.startswith(_SHOWN_BY_THE_ROW))

    def _compare(self, passage: Passage, replayed: ReplayedStep) -> None:
        passage.last = replayed.step
        recorded = self.session.recorded(replayed.step)
        if recorded is None or replayed.log is None:
            return
        passage.compared += 1
        if passage.departure is None:
            passage.departure = self.session.departure(replayed, recorded)


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a pass ended.

    Attributes:
        hit: the step that is bad, or after which the state is; None where all is sound.
        exact: that step, where the waypoint is the state just before it.
    """

    hit: int | None = None
    exact: ReplayedStep | None = None


class _Sparse:
    """Waypoints as often as their share of the time allows."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent = self._cost = 0.0

    def due(self, steps: int) -> bool:
        """Is there time for a waypoint after so many steps?"""
        if steps < _WARM_UP:
            return False
        elapsed = time.perf_counter() - self._began
        return self._spent + self._cost <= WAYPOINT_SHARE * elapsed

    def took(self, seconds: float) -> None:
        """What a waypoint cost."""
        self._spent += seconds
        self._cost = seconds


class _Every:
    """Waypoints every so many steps."""

    def __init__(self, spacing: int) -> None:
        self._spacing = spacing

    def due(self, steps: int) -> bool:
        """Is it the turn of a waypoint after so many steps?"""
        return steps % self._spacing == 0

    def took(self, seconds: float) -> None:
        """Nothing: the spacing is fixed."""
