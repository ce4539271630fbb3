"""Steps that were printed with three digits, told apart again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.rounded_steps import told_apart


def printed(step: int) -> int:
    return int(float(f"{step:.3g}"))


@settings(deadline=None, max_examples=80)
@given(
    first=st.integers(0, 2_000_000),
    distance=st.sampled_from([1, 5, 10, 50, 100, 500, 1000]),
    count=st.integers(2, 120),
)
def test_a_regular_log_rises_and_stays_within_what_it_printed(
    first: int, distance: int, count: int
) -> None:
    steps = [first + distance * n for n in range(count)]
    found, _ = told_apart([printed(step) for step in steps])
    assert len(found) == count
    assert all(b >= a for a, b in pairwise(found))
    for step, one in zip(steps, found, strict=True):
        unit = 10 ** max(len(str(step)) - 3, 0)
        assert abs(one - step) <= unit + distance


def test_the_distance_of_the_steps_that_were_printed_whole_goes_on() -> None:
    steps = list(range(0, 20_000, 10))
    assert told_apart([printed(step) for step in steps]) == (steps, True)


def test_whole_steps_stay_as_they_are_though_one_is_written_twice() -> None:
    assert told_apart([5, 5, 6, 100]) == ([5, 5, 6, 100], False)
    assert told_apart([]) == ([], False)


def test_a_step_that_falls_begins_anew() -> None:
    once = [10900] * 10 + [11000] * 10
    found, changed = told_apart([*once, *once])
    assert changed
    assert found[:20] == found[20:]


def test_uneven_distances_divide_the_way() -> None:
    found, _ = told_apart([10000, 10000, 10100, 20000, 20000])
    assert found[:4] == [10000, 10050, 10100, 20000]
    assert found[4] > 20000
