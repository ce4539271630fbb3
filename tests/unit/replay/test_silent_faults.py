"""The search for a fault that no number shows: which steps are looked into, and how it is dated."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forensics.diagnose.bisection_result import FaultKind, Origin
from forensics.replay import silent_faults
from forensics.replay.session import Session
from forensics.replay.silent_faults import SilentFault, SilentSearch


def origin(operator: str) -> Origin:
    return Origin(kind=FaultKind.APPLIED, phase="optimizer", operator=operator)


@dataclass
class FakeSession:
    """A training whose steps apply the wrong thing in some steps, by operator."""

    wrong: dict[int, str]
    saved: tuple[int, ...] = (0,)
    step_index: int = 0
    steps_run: int = 0
    looked: list[int] = field(default_factory=list)
    model: nn.Module = field(default_factory=nn.Identity)

    def states(self) -> tuple[int, ...]:
        return self.saved

    def go_to(self, step: int) -> int:
        self.step_index = max(state for state in self.saved if state <= step)
        return self.step_index

    def capture(self) -> int:
        return self.step_index

    def run_step(self, *, check_state: bool) -> None:
        assert not check_state
        self.step_index += 1
        self.steps_run += 1


def audit(session: Any, *, before: int) -> Any:
    assert session.step_index == before
    session.looked.append(before)
    session.step_index += 1
    operator = session.wrong.get(before)
    calls = SimpleNamespace(schedulers=[])
    start = SimpleNamespace(average=None)
    facts = SimpleNamespace(events=calls, micro_batches=1, taken=[], start=start, average=None)
    return SimpleNamespace(origin=None if operator is None else origin(operator), facts=facts)


@pytest.fixture(autouse=True)
def _faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silent_faults, "audit", audit)


def find(session: FakeSession, *steps: int) -> SilentFault | None:
    search = SilentSearch(session=cast(Session, session), progress=lambda *_: None)
    return search.find(steps)


def test_a_sound_run_costs_its_looks() -> None:
    session = FakeSession({}, saved=(0, 40, 80))
    assert find(session, 0, 41, 90) is None
    assert session.looked == [0, 41, 90]
    assert session.steps_run == 1 + 10  # from the nearest state to each


def test_a_fault_from_the_start_is_found_in_the_first_step() -> None:
    session = FakeSession(dict.fromkeys(range(100), "clip"))
    found = find(session, 0, 50, 90)
    assert found is not None
    assert (found.step, found.before, found.origin.operator) == (0, 0, "clip")
    assert session.looked == [0]


def test_a_fault_of_one_step_is_that_step() -> None:
    session = FakeSession({60: "resume"}, saved=(0, 50))
    found = find(session, 0, 60, 90)
    assert found is not None
    assert found.step == 60
    assert session.looked == [0, 60, 59]


def test_another_fault_before_is_not_the_same_one() -> None:
    session = FakeSession({59: "clip", 60: "resume"})
    found = find(session, 0, 60)
    assert found is not None
    assert (found.step, found.origin.operator) == (60, "resume")


@settings(deadline=None, max_examples=60)
@given(began=st.integers(1, 300), seen=st.integers(0, 300), every=st.integers(5, 100))
def test_a_lasting_fault_is_dated_to_its_first_step(began: int, seen: int, every: int) -> None:
    session = FakeSession(
        dict.fromkeys(range(began, 700), "clip"), saved=tuple(range(0, 700, every))
    )
    found = find(session, 0, began + seen)
    assert found is not None
    assert found.step == began
    assert len(session.looked) <= 3 + (seen + began).bit_length()
