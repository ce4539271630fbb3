"""Which samples are to blame, on batches whose guilty ones are known."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.replay.proof.delta_debugging import PARTS, Trial, blame


def _bad_with(*guilty: int):
    """A step that goes bad when any of these samples takes part."""
    return lambda part: Trial.BAD if set(part) & set(guilty) else Trial.GOOD


@given(data=st.data(), count=st.integers(2, 300))
@settings(deadline=None, max_examples=80)
def test_one_guilty_sample_is_found_in_logarithmic_time(data, count):
    guilty = data.draw(st.integers(0, count - 1))
    found = blame(count, _bad_with(guilty), budget=1000)
    assert found.guilty == (guilty,)
    assert found.exact
    assert found.trials <= 2 * math.ceil(math.log2(count))


@given(data=st.data(), count=st.integers(17, 200))
@settings(deadline=None, max_examples=80)
def test_several_guilty_samples_are_all_found(data, count):
    guilty = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=6))
    found = blame(count, _bad_with(*guilty), budget=10_000)
    assert found.guilty == tuple(sorted(guilty))
    assert found.trials <= len(guilty) * 2 * math.ceil(math.log2(count)) + 2


@given(data=st.data(), count=st.integers(4, 64))
@settings(deadline=None, max_examples=60)
def test_samples_that_are_bad_only_together(data, count):
    pair = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    found = blame(count, lambda part: Trial.BAD if pair <= set(part) else Trial.GOOD, budget=10_000)
    assert set(found.guilty) == pair


@pytest.mark.parametrize("count", [2, 3, 8, 9, 32, 257])
def test_a_batch_that_goes_bad_in_every_part_is_not_to_blame(count):
    found = blame(count, lambda part: Trial.BAD, budget=1000)
    assert found.guilty == ()
    assert found.everywhere
    assert found.trials <= 2 * PARTS + count // PARTS + 1


def test_every_second_sample_broken_is_a_bad_batch_all_the_same():
    guilty = tuple(range(0, 16, 2))
    found = blame(16, _bad_with(*guilty), budget=1000)
    assert found.guilty == guilty
    assert not found.everywhere


@given(guilty=st.integers(0, 15))
@settings(deadline=None, max_examples=16)
def test_a_batch_statistic_that_fails_on_a_lone_sample_misleads_nobody(guilty):
    def std(part):
        return Trial.BAD if len(part) == 1 or guilty in part else Trial.GOOD

    assert blame(16, std, budget=1000).guilty == (guilty,)


def test_all_samples_needed_together_is_not_a_bad_batch():
    found = blame(8, lambda part: Trial.GOOD, budget=1000)
    assert found.guilty == ()
    assert not found.everywhere
    assert found.testable


def test_a_batch_that_cannot_be_taken_apart():
    found = blame(8, lambda part: Trial.UNTESTABLE, budget=1000)
    assert found.guilty == ()
    assert not found.testable
    assert found.trials == 2


def test_a_spent_budget_names_the_smallest_part_that_went_bad():
    found = blame(64, _bad_with(3, 9, 40), budget=5)
    assert not found.exact
    assert found.trials == 5
    assert {3, 9} & set(found.guilty) or 40 in found.guilty
    assert len(found.guilty) < 64


def test_each_part_is_tried_once_and_is_never_empty_or_whole():
    seen = []

    def record(part):
        seen.append(part)
        return Trial.BAD if {2, 5, 11} & set(part) else Trial.GOOD

    blame(12, record, budget=1000)
    assert len(seen) == len(set(seen))
    assert all(0 < len(part) < 12 for part in seen)
    assert all(part == tuple(sorted(part)) for part in seen)


@pytest.mark.parametrize("count", [0, 1])
def test_there_is_nothing_to_tell_apart_in_a_batch_of_one(count):
    def never(part):
        raise AssertionError("nothing to try")

    assert blame(count, never, budget=10).guilty == ()


def test_parts_that_all_go_bad_are_not_the_batch_though_a_single_sample_cannot_be_run():
    def try_part(part):
        return Trial.BAD if len(part) > 1 else Trial.UNTESTABLE

    found = blame(16, try_part, budget=64)
    assert (found.everywhere, found.guilty) == (True, ())
