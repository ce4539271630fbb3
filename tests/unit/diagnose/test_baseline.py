import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.baseline import HEAD, MIN_PAST, baseline
from forensics.diagnose.finite import FiniteSeries


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, st.integers(0, 600), elements=st.floats(width=32)))
def test_a_baseline_looks_only_at_the_finite_past(values: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        whole = baseline(FiniteSeries.of(values))
        cut = len(values) // 2
        part = baseline(FiniteSeries.of(values[:cut]))
    assert np.isnan(whole.center(np.arange(min(MIN_PAST, len(whole.rows))))).all()
    index = np.arange(len(part.rows))
    np.testing.assert_array_equal(whole.center(index), part.center(index))
    np.testing.assert_array_equal(whole.spread(index), part.spread(index))


def test_the_fast_baseline_agrees_with_the_exact_one_where_they_meet() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    line = baseline(FiniteSeries.of(values))
    for i in (HEAD, HEAD + 63, HEAD + 64, 999):
        start = (i - 128) // 64 * 64
        window = values[start : start + 128]
        assert line.center(np.array([i]))[0] == pytest.approx(np.median(window), abs=1e-6)
        assert start + 128 <= i, "a baseline must never see the value it judges"


def test_nan_in_the_window_does_not_blind_the_baseline() -> None:
    values = np.random.default_rng(1).normal(size=500)
    values[200:260] = np.nan
    values[400] = 50.0
    line = baseline(FiniteSeries.of(values))
    assert 400 in line.rows[line.above(20.0)].tolist()


@given(arrays(np.float64, st.integers(0, 900), elements=st.floats(-3, 3)), st.floats(0, 5))
@settings(max_examples=40, deadline=None)
def test_above_is_what_center_and_spread_say(values: np.ndarray, z: float) -> None:
    line = baseline(FiniteSeries.of(values))
    index = np.arange(len(values))
    expected = np.flatnonzero(values > line.center(index) + z * line.spread(index))
    np.testing.assert_array_equal(line.above(z), expected)
