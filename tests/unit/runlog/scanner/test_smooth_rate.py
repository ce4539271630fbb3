"""Skips in a learning rate that falls smoothly, and all that looks like some and is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.smooth_rate import skips_in_fall
from forensics.runlog.steps import FloatArray, IntArray

STEPS = 3000
Schedule = Callable[[FloatArray], FloatArray]


def cosine(taken: FloatArray) -> FloatArray:
    return 3e-4 * (0.1 + 0.45 * (1 + np.cos(np.pi * taken / STEPS)))


def inverse_root(taken: FloatArray) -> FloatArray:
    return 3e-4 / np.sqrt(1 + taken / 100)


def quadratic(taken: FloatArray) -> FloatArray:
    return 3e-4 * (1 - taken / STEPS) ** 2


def exponential(taken: FloatArray) -> FloatArray:
    return 3e-4 * 0.999**taken


SMOOTH = (cosine, inverse_root, quadratic, exponential)


def log(schedule: Schedule, skips: list[int], every: int) -> tuple[IntArray, FloatArray, IntArray]:
    """Steps, rates of a schedule that stands still on skips, and the skips of each record."""
    at = np.arange(every, STEPS + 1, every)
    lost = np.searchsorted(np.sort(skips), at, side="right")
    return at, schedule((at - lost).astype(float)), np.diff(lost, prepend=0)


@pytest.mark.parametrize("schedule", SMOOTH)
def test_a_rate_that_stands_still_at_every_step_logged_is_a_skip(schedule: Schedule) -> None:
    at, rate, expected = log(schedule, [700, 701, 1500, 2200], 1)
    skipped, known = skips_in_fall(at, rate)
    np.testing.assert_array_equal(skipped[known], expected[known])
    assert skipped.sum() == 4
    assert known.mean() > 0.95


@pytest.mark.parametrize("schedule", SMOOTH)
@settings(deadline=None, max_examples=25)
@given(
    skips=st.lists(st.integers(1, STEPS - 10), max_size=8, unique=True),
    every=st.sampled_from([1, 5, 10, 25, 50]),
)
def test_no_skip_is_told_that_was_none(schedule: Schedule, skips: list[int], every: int) -> None:
    at, rate, expected = log(schedule, skips, every)
    skipped, known = skips_in_fall(at, rate)
    np.testing.assert_array_equal(skipped[known], expected[known])
    assert not skipped[~known].any()


@settings(deadline=None, max_examples=40)
@given(
    skips=st.lists(st.integers(1, STEPS - 10), max_size=4, unique=True),
    every=st.sampled_from([1, 10, 50]),
    written=st.sampled_from(["%.1e", "%.2e", "%.3e", "%.5e", "%.6f", "%.8f"]),
    schedule=st.sampled_from(SMOOTH),
)
def test_rounded_rates_make_no_skips(
    skips: list[int], every: int, written: str, schedule: Schedule
) -> None:
    at, rate, expected = log(schedule, skips, every)
    skipped, known = skips_in_fall(at, np.array([float(written % value) for value in rate]))
    np.testing.assert_array_equal(skipped[known], expected[known])


def test_rounding_so_coarse_that_rates_repeat_tells_nothing() -> None:
    at, rate, _ = log(cosine, [], 1)
    skipped, known = skips_in_fall(at, np.round(rate, 7))
    assert (np.diff(np.round(rate, 7)) == 0).mean() > 0.1
    assert not known.any()
    assert not skipped.any()


def stairs(taken: FloatArray) -> FloatArray:
    """A schedule that is moved once an epoch of 50 steps."""
    return cosine(np.floor(taken / 50) * 50)


def with_a_floor(taken: FloatArray) -> FloatArray:
    return np.maximum(cosine(taken), 1.2e-4)


def held_then_falling(taken: FloatArray) -> FloatArray:
    return np.where(taken < 1500, 3e-4, 3e-4 * (1 - (taken - 1500) / 2000))


def kinked(taken: FloatArray) -> FloatArray:
    return np.where(taken < 1505, 1 - taken / 5000, 0.699 - (taken - 1505) / 9000) * 1e-4


def cut_by_hand(taken: FloatArray) -> FloatArray:
    return np.where(taken < 1505, cosine(taken), cosine(taken) / 2)


@pytest.mark.parametrize("every", [1, 10, 20])
@pytest.mark.parametrize("schedule", [stairs, with_a_floor, held_then_falling, kinked, cut_by_hand])
def test_plateaus_kinks_and_stairs_are_no_skips(schedule: Schedule, every: int) -> None:
    at, rate, _ = log(schedule, [], every)
    skipped, _ = skips_in_fall(at, rate)
    assert not skipped.any()


def test_each_fall_of_a_schedule_that_restarts_is_judged() -> None:
    at, rate, expected = log(lambda taken: cosine(taken % 1000 * 3), [400, 1700], 1)
    skipped, known = skips_in_fall(at, rate)
    np.testing.assert_array_equal(skipped[known], expected[known])
    assert skipped.sum() == 2


def test_few_records_tell_nothing() -> None:
    at, rate, _ = log(cosine, [1000], 400)
    assert not skips_in_fall(at, rate)[1].any()


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.one_of(st.floats(0, 1e300), st.sampled_from([0.0, 1e-5, 2e-5])), max_size=40),
    st.data(),
)
def test_any_rates_give_counts_within_their_stretch(
    rates: list[float], data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(1, 9), min_size=len(rates), max_size=len(rates)))
    at = np.cumsum(np.array(gaps, dtype=np.int64))
    with np.errstate(all="ignore"):
        skipped, known = skips_in_fall(at, np.array(rates, dtype=float))
    assert (skipped >= 0).all()
    assert (skipped <= np.diff(at, prepend=0)).all()
    assert not skipped[~known].any()
