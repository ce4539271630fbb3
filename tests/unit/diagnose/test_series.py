import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.series import (
    HEAD,
    MIN_PAST,
    baseline,
    block_medians,
    episodes,
    runs_of,
    spread_out,
)

any_series = arrays(np.float64, st.integers(0, 600), elements=st.floats(width=32))


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


@settings(max_examples=50, deadline=None)
@given(any_series)
def test_a_baseline_looks_only_at_the_finite_past(values: np.ndarray) -> None:
    whole = baseline(values)
    assert np.isnan(whole.center[:MIN_PAST]).all()
    cut = len(values) // 2
    first = baseline(values[:cut])
    count = len(first.rows)
    np.testing.assert_array_equal(whole.center[:count], first.center)
    np.testing.assert_array_equal(whole.spread[:count], first.spread)


def test_the_fast_baseline_agrees_with_the_exact_one_where_they_meet() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    line = baseline(values)
    for i in (HEAD, HEAD + 63, HEAD + 64, 999):
        start = (i - 128) // 64 * 64
        window = values[start : start + 128]
        assert line.center[i] == pytest.approx(np.median(window))
        assert start + 128 <= i, "a baseline must never see the value it judges"


def test_nan_in_the_window_does_not_blind_the_baseline() -> None:
    values = np.random.default_rng(1).normal(size=500)
    values[200:260] = np.nan
    values[400] = 50.0
    line = baseline(values)
    assert line.z[np.flatnonzero(line.rows == 400)[0]] > 20


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
