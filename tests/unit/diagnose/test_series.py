import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.series import (
    block_bounds,
    block_medians,
    episodes,
    median,
    medians_of_five,
    merged,
    row_medians,
    runs_of,
    sigma,
    significant_digits,
    spread_out,
    theil_sen,
    told_episodes,
)


@given(arrays(np.bool_, st.integers(0, 50)))
def test_runs_cover_exactly_the_true_rows(mask: np.ndarray) -> None:
    covered = np.zeros(len(mask), dtype=bool)
    starts, ends = runs_of(mask)
    for start, end in zip(starts, ends, strict=True):
        assert not covered[max(0, start - 1) : end + 1].any()
        covered[start : end + 1] = True
    assert (covered == mask).all()


def test_episodes_break_only_after_more_than_the_gap() -> None:
    rows = np.array([3, 5, 15, 26])
    assert episodes(rows, gap=10) == [(3, 15), (26, 26)]
    assert episodes(rows[:0], gap=10) == []


def test_block_medians_leave_out_what_is_not_finite() -> None:
    values = np.array([1.0, np.nan, 1.0, 3.0, np.inf, 3.0])
    np.testing.assert_array_equal(block_medians(values, 2), [1.0, 3.0])
    assert len(block_medians(np.full(5, np.nan), 4)) == 0
    assert len(block_medians(np.arange(3.0), 40)) == 3


@given(st.integers(1, 500), st.integers(2, 20))
def test_spread_out_keeps_both_ends(count: int, most: int) -> None:
    rows = np.arange(count)
    picked = spread_out(rows, most)
    assert len(picked) <= max(most, 1)
    assert picked[0] == 0
    assert picked[-1] == count - 1


@given(arrays(np.float64, st.integers(0, 60), elements=st.floats(-1e9, 1e9)))
def test_medians_of_five_are_medians(values: np.ndarray) -> None:
    whole = values[: len(values) // 5 * 5].reshape(-1, 5)
    np.testing.assert_array_equal(medians_of_five(values), np.median(whole, axis=1))


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e300, 1e300)))
def test_a_median_is_that_of_numpy(values: np.ndarray) -> None:
    assert median(values) == np.median(values)
    bad = np.concatenate((values, [np.nan, np.inf, -np.inf]))
    assert median(bad) == median(values)
    spread = np.median(np.abs(values - np.median(values)))
    assert sigma(bad) == pytest.approx(1.4826 * spread, rel=1e-4)


def test_a_median_of_nothing_is_nan() -> None:
    nothing = np.array([np.nan, np.inf])
    assert np.isnan(median(nothing))
    assert np.isnan(sigma(nothing[:0]))


def test_row_medians_leave_out_what_is_not_finite() -> None:
    rows = np.array(
        [[1.0, np.nan, 3.0, 2.0], [np.inf, np.nan, -np.inf, np.nan], [4.0, 2.0, 3.0, 1.0]]
    )
    np.testing.assert_array_equal(row_medians(rows), [2.0, np.nan, 2.5])
    assert row_medians(np.empty((3, 0))).shape == (3,)


def test_theil_sen_is_the_median_slope() -> None:
    values = 3.0 + 0.5 * np.arange(21, dtype=np.float64)
    values[7] = 1e6
    assert theil_sen(values) == 0.5
    assert np.isnan(theil_sen(np.array([1.0, np.nan])))


@pytest.mark.parametrize(
    ("values", "digits"),
    [([2.31, 0.05, np.nan], 3), ([1.0, 20.0], 1), ([0.1 + 0.2], 9), ([np.nan, 0.0], 0)],
)
def test_digits_are_those_that_were_printed(values: list[float], digits: int) -> None:
    assert significant_digits(np.array(values)) == digits


@given(st.integers(0, 200), st.integers(1, 50))
def test_blocks_cover_everything_evenly(count: int, blocks: int) -> None:
    sizes = np.diff(block_bounds(count, blocks))
    assert sizes.sum() == count
    assert len(sizes) == 0 or sizes.max() - sizes.min() <= 1


def test_merged_rows_are_ascending_and_each_comes_once() -> None:
    parts = (np.array([5, 9]), np.array([1, 5, 7]), np.empty(0, dtype=np.int64))
    assert merged(*parts).tolist() == [1, 5, 7, 9]
    assert merged(parts[2], parts[2]).tolist() == []


def test_told_episodes_count_their_rows_and_fold_what_comes_after_the_most() -> None:
    rows = np.array([3, 5, 40, 80, 81, 120])
    told = told_episodes(rows, gap=10, most=3)
    assert [(e.first, e.last, e.rows, e.folded) for e in told] == [
        (3, 5, 2, 1),
        (40, 40, 1, 1),
        (80, 120, 3, 2),
    ]
    assert told_episodes(rows[:0], gap=10) == []


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 400), max_size=60), st.integers(1, 30), st.integers(1, 6))
def test_appended_rows_move_no_told_episode(rows: set[int], gap: int, most: int) -> None:
    ordered = np.array(sorted(rows), dtype=np.int64)
    cut = len(ordered) // 2
    before = told_episodes(ordered[:cut], gap, most)
    after = told_episodes(ordered, gap, most)
    assert [e.first for e in before] == [e.first for e in after[: len(before)]]
    assert len(after) <= most
    assert sum(e.rows for e in after) == len(ordered)
