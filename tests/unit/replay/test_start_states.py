"""The last sound saved state, with as few loads as the search allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.replay.bisection import Judgement, State
from forensics.replay.start_states import StateSearch, search_states, without
from forensics.runlog.checkpoint_files import CheckpointInfo


def saved(step: int, healthy: bool | None = None, **health: Any) -> CheckpointInfo:
    name = f"step-{step:08d}{'.nonfinite' if healthy is False else ''}.pt"
    return CheckpointInfo(step, Path(name), healthy, health)


def by_steps(bad_from: int | None, untestable: frozenset[int] = frozenset()) -> Any:
    def test(info: CheckpointInfo) -> Judgement:
        if info.step in untestable:
            return Judgement(state=State.UNTESTABLE, reason="torn")
        bad = bad_from is not None and info.step >= bad_from
        return Judgement(state=State.BAD if bad else State.GOOD)

    return test


def verdicts(found: StateSearch) -> list[str]:
    return [state.verdict for state in found.verdicts]


def test_health_files_answer_without_a_load() -> None:
    states = (saved(0, True), saved(10, True), saved(20, False), saved(30, False))
    found = search_states(states, lambda info: 1 / 0)
    assert (found.last_good, found.first_bad, found.loads) == (10, 20, 0)
    assert verdicts(found) == ["good", "good", "bad", "bad"]


def test_a_name_tells_that_a_state_was_set_aside_be_it_a_file_or_a_folder() -> None:
    names = ("step-00000010", "step-00000020.nonfinite", "step-00000030.nonfinite.pt")
    states = tuple(CheckpointInfo(int(n[5:13]), Path(n), None, {}) for n in names)
    asked: list[int] = []

    def test(info: CheckpointInfo) -> Judgement:
        asked.append(info.step)
        return Judgement(state=State.GOOD)

    assert [info.set_aside for info in states] == [False, True, True]
    found = search_states(states, test)
    assert (asked, found.first_bad) == ([10], 20)


def test_a_stale_state_is_finite_and_good_to_start_from() -> None:
    states = (saved(0, True), saved(10, False, finite=True))
    stale = (states[0], CheckpointInfo(10, Path("step-00000010.pt"), False, {"finite": True}))
    assert search_states(stale, lambda info: 1 / 0).first_bad is None


def test_the_log_leaves_the_later_states_alone() -> None:
    states = tuple(saved(10 * i) for i in range(20))
    asked: list[int] = []

    def test(info: CheckpointInfo) -> Judgement:
        asked.append(info.step)
        return Judgement(state=State.GOOD)

    found = search_states(states, test, not_after=55)
    assert asked == [0, 50]
    assert (found.last_good, found.first_bad) == (50, None)


def test_no_state_before_the_bad_step() -> None:
    found = search_states((saved(10), saved(20)), lambda info: 1 / 0, not_after=5)
    assert (found.last_good, found.first_bad) == (None, None)
    assert verdicts(found) == ["untested", "untested"]


def test_a_sound_state_after_a_bad_one_is_told() -> None:
    states = (saved(0, True), saved(10, False), saved(20, True), saved(30, False))
    assert search_states(states, lambda info: 1 / 0).contradictions == (20,)


def test_no_states_at_all() -> None:
    assert search_states((), lambda info: 1 / 0) == StateSearch()


@settings(deadline=None, max_examples=80)
@given(
    count=st.integers(1, 40),
    bad=st.integers(0, 45),
    torn=st.frozensets(st.integers(0, 39), max_size=4),
)
def test_the_first_bad_state_within_the_promised_loads(
    count: int, bad: int, torn: frozenset[int]
) -> None:
    states = tuple(saved(i) for i in range(count))
    found = search_states(states, by_steps(bad, torn))
    sound = [i for i in range(count) if i not in torn and i < bad]
    rotten = [i for i in range(count) if i not in torn and i >= bad]
    asked_torn = sum(state.verdict == "untestable" for state in found.verdicts)
    assert found.loads <= math.ceil(math.log2(max(count, 1))) + 2 + asked_torn
    if sound and rotten:
        assert (found.last_good, found.first_bad) == (sound[-1], rotten[0])


def test_a_last_good_state_that_cannot_be_opened_is_untestable_and_the_one_before_is_taken() -> (
    None
):
    states = tuple(saved(step, finite=step < 50) for step in (10, 20, 30, 50))
    found = search_states(
        states, lambda info: 1 / 0, flaw=lambda info: "is torn" if info.step in (20, 30) else ""
    )
    assert (found.last_good, found.first_bad) == (10, 50)
    told = {v.step: (v.verdict, v.reason) for v in found.verdicts}
    assert told[20] == told[30] == ("untestable", "is torn")
    assert told[10][0] == "good"
    none = search_states(states, lambda info: 1 / 0, flaw=lambda info: "is torn")
    assert none.last_good is None


def test_what_the_replay_could_not_load_is_untestable() -> None:
    found = search_states((saved(10, True), saved(20, True)), lambda info: 1 / 0)
    told = [v.verdict for v in without(found, {10: "is of another model"}).verdicts]
    assert told == ["untestable", "good"]
