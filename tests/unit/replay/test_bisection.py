import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.replay.bisection import Ending, Judgement, SearchResult, State, search

G, B, U = State.GOOD, State.BAD, State.UNTESTABLE


def run(states: list[State], **options: object) -> tuple[SearchResult, list[int]]:
    asked: list[int] = []

    def test(index: int) -> Judgement:
        asked.append(index)
        return Judgement(state=states[index], reason=f"state {index}")

    return search(len(states), test, **options), asked  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.sets(st.integers(1, 598), max_size=40))
def test_the_first_bad_state_is_found_within_the_promised_loads(
    good: int, bad: int, holes: set[int]
) -> None:
    states = [G] * good + [B] * bad
    for i in holes:
        if 0 < i < len(states) - 1:
            states[i] = U
    result, asked = run(states)
    assert result.ending is Ending.FOUND
    testable = [i for i, s in enumerate(states) if s is not U]
    assert result.first_bad == min(i for i in testable if states[i] is B)
    assert result.last_good == max(i for i in testable if states[i] is G)
    holes_met = sum(states[i] is U for i in asked)
    assert len(asked) == len(set(asked)) == result.loads
    assert len(asked) - holes_met <= math.ceil(math.log2(len(states))) + 2
    assert all(states[i] is U for i in result.untestable)
    assert result.monotone


def test_both_ends_are_asked_first() -> None:
    _, asked = run([G] * 8 + [B] * 8)
    assert asked[:2] == [0, 15]


def test_ends_of_one_kind_leave_nothing_to_search() -> None:
    result, asked = run([G] * 9)
    assert (result.ending, result.last_good, asked) == (Ending.ALL_GOOD, 8, [0, 8])
    result, asked = run([B] * 9)
    assert (result.ending, result.first_bad) == (Ending.ALL_BAD, 0)
    assert asked == [0, 8]


def test_untestable_ends_give_way_inwards() -> None:
    result, _ = run([U, U, G, B, U])
    assert (result.last_good, result.first_bad) == (2, 3)
    result, asked = run([U] * 4)
    assert result.ending is Ending.NOTHING_TESTABLE
    assert sorted(set(asked)) == [0, 1, 2, 3]


def test_untestable_states_between_good_and_bad_are_named() -> None:
    result, _ = run([G, U, U, B])
    assert result.untestable == (1, 2)


def test_what_is_known_beforehand_is_not_loaded() -> None:
    known = {0: Judgement(state=G), 5: Judgement(state=B, reason="w is NaN")}
    result, asked = run([G, G, G, B, B, B], known=known)
    assert (result.last_good, result.first_bad) == (2, 3)
    assert 0 not in asked
    assert 5 not in asked
    assert result.history[0].loaded is False


def test_a_good_state_after_a_bad_one_is_reported() -> None:
    known = {1: Judgement(state=B), 3: Judgement(state=G)}
    result, _ = run([G, B, B, G, B], known=known)
    assert not result.monotone
    assert 3 in result.contradictions


def test_the_log_narrows_the_range_before_any_load() -> None:
    result, asked = run([G] * 50 + [B] * 50, within=(48, 52))
    assert (result.last_good, result.first_bad) == (49, 50)
    assert min(asked) >= 48
    assert max(asked) <= 52


@pytest.mark.parametrize(("states", "ending"), [([], "nothing-testable"), ([G], "all-good")])
def test_none_or_one_candidate(states: list[State], ending: str) -> None:
    assert run(states)[0].ending == ending
