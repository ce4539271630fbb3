"""Detection: the first bad step and the state just before it, at the cost of plain training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.bisection_result import Departure
from forensics.record.step_log import StepLog
from forensics.replay import detection
from forensics.replay.detection import Detector, Passage
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session


@dataclass(frozen=True)
class Copy:
    """A captured state of the fake training."""

    step: int
    poisoned: bool


@dataclass
class FakeSession:
    """A training that goes bad at chosen steps: in its row, in its state, or both.

    Attributes:
        row_bad: from this step on the loss is NaN.
        state_bad: from this step on the state after it is bad.
        departs: the replay is not the record from this row on.
        raises: the step that raises.
        flaky: go bad in the first replay only.
    """

    row_bad: int | None = None
    state_bad: int | None = None
    departs: int | None = None
    raises: int | None = None
    flaky: bool = False
    start: int = 0
    step_index: int = 0
    poisoned: bool = False
    steps_run: int = 0
    loads: int = 0
    copies: list[int] = field(default_factory=list)
    seen: int = -1

    def go_to(self, step: int) -> int:
        assert step >= self.start
        self.step_index, self.poisoned = self.start, False
        self.loads += 1
        return self.start

    def capture(self) -> Copy:
        self.copies.append(self.step_index)
        return Copy(self.step_index, self.poisoned)

    def restore(self, state: Copy) -> None:
        self.step_index, self.poisoned = state.step, state.poisoned

    def bad_state(self) -> tuple[str, ...]:
        return ("param:w",) if self.poisoned else ()

    def run_step(self, *, trace: Any, check_state: bool) -> ReplayedStep:
        assert not check_state
        step, self.step_index = self.step_index, self.step_index + 1
        self.steps_run += 1
        again, self.seen = step <= self.seen, max(self.seen, step)
        if step == self.raises:
            return ReplayedStep(step=step, log=None, exception="E: no", bad=("exception",))
        if self.state_bad is not None and step >= self.state_bad:
            self.poisoned = True
        row = self.row_bad is not None and step >= self.row_bad and not (self.flaky and again)
        loss = math.nan if row else 1.0
        log = StepLog(
            step=step, lrs=(0.1,), grad_l2_pre_clip=1.0, grad_l2_post_clip=None, loss=loss
        )
        return ReplayedStep(step=step, log=log, bad=("loss",) if row else ())

    def recorded(self, step: int) -> dict[str, Any] | None:
        return {"step": step}

    def departure(
        self, replayed: ReplayedStep, recorded: dict[str, Any] | None
    ) -> Departure | None:
        if self.departs is None or replayed.step < self.departs:
            return None
        return Departure(step=replayed.step, column="loss", recorded=1.0, replayed=2.0)


def detect(session: FakeSession, until: int, **options: Any) -> Passage:
    deep = options.pop("deep", True)
    detector = Detector(cast(Session, session), lambda step: bool(step.bad), deep=deep)
    return detector.run(until, **options)


def before(passage: Passage) -> Any:
    return passage.before


def test_a_suspect_step_costs_no_second_replay() -> None:
    session = FakeSession(row_bad=300)
    passage = detect(session, 300, marks={300})
    assert passage.bad is not None
    assert (passage.bad.step, before(passage)) == (300, Copy(300, False))
    assert session.steps_run == 301
    assert session.loads == 0


def test_a_sound_stretch_is_sound() -> None:
    passage = detect(FakeSession(), 50)
    assert (passage.bad, passage.before, passage.last) == (None, None, 50)
    assert passage.compared == 51
    assert passage.faithful_until == 50


def test_a_state_that_goes_bad_silently_is_found() -> None:
    session = FakeSession(state_bad=137)
    passage = detect(session, 200)
    assert passage.bad is not None
    assert passage.bad.step == 137
    assert passage.bad.bad == ("param:w",)
    assert before(passage) == Copy(137, False)


def test_where_rows_alone_are_asked_for_the_state_is_left_alone() -> None:
    assert detect(FakeSession(state_bad=137), 200, deep=False).bad is None


def test_an_exception_ends_it() -> None:
    passage = detect(FakeSession(raises=9), 20, marks={9})
    assert passage.bad is not None
    assert passage.bad.exception == "E: no"
    assert before(passage).step == 9
    assert passage.compared == 9


def test_the_first_row_that_differs_is_kept() -> None:
    passage = detect(FakeSession(departs=7), 20)
    assert passage.departure is not None
    assert passage.departure.step == 7
    assert passage.faithful_until == 6


def test_what_does_not_come_back_is_told_as_unstable() -> None:
    passage = detect(FakeSession(row_bad=40, flaky=True), 60)
    assert passage.bad is None
    assert passage.unstable == 40


def test_every_step_is_told_before_it_runs() -> None:
    told: list[int] = []
    session = cast(Session, FakeSession(row_bad=5))
    Detector(session, lambda step: bool(step.bad), on_step=told.append).run(9, marks={5})
    assert told == [0, 1, 2, 3, 4, 5]


@settings(deadline=None, max_examples=120)
@given(
    start=st.integers(0, 50),
    row=st.none() | st.integers(0, 200),
    state=st.none() | st.integers(0, 200),
    mark=st.none() | st.integers(0, 200),
    length=st.integers(1, 150),
)
def test_the_state_is_always_the_one_before_the_first_bad_step(
    start: int, row: int | None, state: int | None, mark: int | None, length: int
) -> None:
    row_bad = None if row is None else start + row
    state_bad = None if state is None else start + state
    session = FakeSession(row_bad=row_bad, state_bad=state_bad, start=start, step_index=start)
    until = start + length - 1
    marks = set() if mark is None else {start + mark}
    passage = detect(session, until, marks=marks)
    first = min((s for s in (row_bad, state_bad) if s is not None and s <= until), default=None)
    if first is None:
        assert passage.bad is None
        assert session.steps_run == length
    else:
        assert passage.bad is not None
        assert passage.bad.step == first
        assert before(passage) == Copy(first, False)
        # The stretch once, its last part again at each of a few rounds that narrow it eightfold.
        assert session.steps_run <= 3 * length + 10


def test_waypoints_take_their_share_of_the_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(detection.time, "perf_counter", lambda: clock[0])

    class Slow(FakeSession):
        def run_step(self, *, trace: Any, check_state: bool) -> ReplayedStep:
            clock[0] += 1.0
            return super().run_step(trace=trace, check_state=check_state)

        def capture(self) -> Copy:
            clock[0] += 3.0
            return super().capture()

    session = Slow()
    detect(session, 999)
    assert len(session.copies) >= 3
    assert 3.0 * len(session.copies) <= 0.025 * clock[0]
