import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.percentiles import finite_percentiles

PERCENTS = (0, 1, 50, 90, 99, 100)


@given(arrays(np.float64, st.integers(20, 400), elements=st.floats(-1e6, 1e6)))
@settings(max_examples=50, deadline=None)
def test_percentiles_are_those_of_numpy(values: np.ndarray) -> None:
    assert finite_percentiles(values, PERCENTS) == np.percentile(values, PERCENTS).tolist()


@pytest.mark.parametrize("order", ["random", "sorted", "periodic", "constant"])
def test_percentiles_of_a_long_series_with_gaps(order: str) -> None:
    values = np.random.default_rng(0).normal(size=100_000)
    if order == "sorted":
        values.sort()
    elif order == "periodic":  # the sample meets only one of two kinds of values
        values = np.where(np.arange(len(values)) % 2 == 0, values, values + 100)
    elif order == "constant":
        values[:] = 2.5
    finite = values.copy()
    values[::7] = np.nan
    values[5::1001] = np.inf
    values[6::1003] = -np.inf
    finite = values[np.isfinite(values)]
    assert finite_percentiles(values, PERCENTS) == np.percentile(finite, PERCENTS).tolist()


def test_too_few_values_have_no_percentiles() -> None:
    assert finite_percentiles(np.full(1000, np.nan), PERCENTS) is None
    assert finite_percentiles(np.arange(19.0), PERCENTS) is None


@pytest.mark.parametrize("share", [0.001, 0.3, 1.0])
def test_of_some_of_the_values(share):
    rng = np.random.default_rng(3)
    values, among = rng.lognormal(size=200_000), rng.random(200_000) < share
    values[::7] = np.inf
    told = finite_percentiles(values, PERCENTS, among)
    assert told == np.percentile(values[among & np.isfinite(values)], PERCENTS).tolist()
