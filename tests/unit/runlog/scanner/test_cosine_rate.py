"""Steps lost until each record of a cosine whose end is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.cosine_rate import lost_in_cosine
from forensics.runlog.steps import FloatArray, IntArray

BASE, STEPS = 2e-5, 600


def log(
    skips: list[int], every: int, warmup: int, power: float = 1.0
) -> tuple[IntArray, FloatArray, IntArray]:
    at = np.arange(every, STEPS + 1, every)
    lost = np.searchsorted(np.sort(skips), at, side="right")
    taken = (at - lost).astype(float)
    falling = (
        0.5 * (1 + np.cos(np.pi * np.maximum(taken - warmup, 0) / (STEPS - warmup)))
    ) ** power
    rate = BASE * np.where(taken < warmup, taken / max(warmup, 1), falling)
    start = int(np.argmax(rate))
    return at[start:], rate[start:], lost[start:]


@settings(deadline=None, max_examples=60)
@given(
    skips=st.lists(st.integers(1, STEPS - 40), max_size=10, unique=True),
    every=st.sampled_from([5, 10, 20]),
    warmup=st.integers(0, 90),
)
def test_the_count_is_exact_with_a_warm_up_known_or_not(
    skips: list[int], every: int, warmup: int
) -> None:
    at, rate, lost = log(skips, every, warmup)
    slope = BASE / warmup if warmup > 3 * every else None
    after = int(at[0] - every) if slope else 0
    found = lost_in_cosine(at, rate, STEPS, slope=slope, after=max(after - len(skips), 0))
    if found is None:  # the warm-up ended after the second record, or too much was lost before it
        assert warmup > at[1] or lost[1] >= 16
        return
    tells = np.isfinite(found)
    np.testing.assert_array_equal(found[tells], lost[tells])
    assert tells.mean() > 0.7


def test_the_lag_of_a_step_is_one_step_lost_all_along() -> None:
    at, rate, _ = log([1], 10, 0)
    found = lost_in_cosine(at, rate, STEPS)
    assert found is not None
    assert set(found[np.isfinite(found)]) == {1.0}


@pytest.mark.parametrize("power", [0.9, 1.1, 2.0])
def test_another_curve_is_none(power: float) -> None:
    at, rate, _ = log([], 10, 0, power)
    assert lost_in_cosine(at, rate, STEPS) is None


def test_a_cosine_with_another_end_is_none() -> None:
    at, rate, _ = log([], 10, 0)
    assert lost_in_cosine(at, rate, STEPS + 50) is None


@pytest.mark.parametrize("written", ["%.1e", "%.2e", "%.3e"])
def test_rounded_rates_tell_nothing_that_is_wrong(written: str) -> None:
    at, rate, lost = log([100, 300], 10, 0)
    found = lost_in_cosine(at, np.array([float(written % value) for value in rate]), STEPS)
    if found is not None:
        tells = np.isfinite(found)
        np.testing.assert_array_equal(found[tells], lost[tells])


@pytest.mark.parametrize(
    "rate",
    [np.full(60, 1e-4), np.zeros(60), np.linspace(1e-4, 0, 60), np.geomspace(1e-4, 1e-9, 60)],
)
def test_rates_of_other_kinds_are_none(rate: FloatArray) -> None:
    assert lost_in_cosine(np.arange(10, 610, 10), rate, STEPS) is None
