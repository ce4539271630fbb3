from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.lr_skips import skips_by_rate

BASE, WARMUP, STEPS = 3e-4, 200, 2000


def linear(taken: np.ndarray) -> np.ndarray:
    """A linear warm-up and a linear decay to 0, by steps that the schedule has made."""
    rising = BASE * taken / WARMUP
    return np.where(taken < WARMUP, rising, BASE * (STEPS - taken) / (STEPS - WARMUP))


def cosine(taken: np.ndarray) -> np.ndarray:
    falling = 0.5 * (1 + np.cos(np.pi * (taken - WARMUP) / (STEPS - WARMUP)))
    return BASE * np.where(taken < WARMUP, taken / WARMUP, falling)


def log(skips: list[int], every: int, schedule, lag: int = 0):  # type: ignore[no-untyped-def]
    """Steps logged, and the rates that a schedule standing still on these steps shows."""
    step = np.arange(every, STEPS + 1, every)
    lost = np.searchsorted(np.sort(skips), step, side="right")
    return step, schedule(np.maximum(step - lost - lag, 0).astype(float))


def by_row(skips: list[int], step: np.ndarray, every: int) -> list[int]:
    return [sum(s - every < skip <= s for skip in skips) for s in step]


SKIPS = st.lists(st.integers(1, STEPS - 60), max_size=12, unique=True)


@settings(deadline=None, max_examples=60)
@given(skips=SKIPS, every=st.sampled_from([5, 10, 25]))
def test_each_skip_of_a_linear_schedule_is_counted_between_its_records(
    skips: list[int], every: int
) -> None:
    step, lr = log(skips, every, linear)
    found = skips_by_rate(step, lr, planned=STEPS, may_lag=False)
    assert found is not None
    assert found.skipped.sum() == len(skips) or not found.known.all()
    expected = np.array(by_row(skips, step, every))
    # The record at the turn of the schedule may tell nothing; its skips are the next one's.
    known = np.flatnonzero(found.known)
    np.testing.assert_array_equal(
        found.skipped[known], np.diff(np.cumsum(expected)[known], prepend=0)
    )


@pytest.mark.parametrize("schedule", [linear, cosine])
def test_a_rate_that_is_logged_a_step_late_is_no_skip(schedule) -> None:  # type: ignore[no-untyped-def]
    step, lr = log([], 10, schedule, lag=1)
    for may_lag in (True, None):
        found = skips_by_rate(step, lr, planned=STEPS, may_lag=may_lag)
        assert found is not None
        assert found.lag == 1
        assert found.skipped.sum() == 0


@settings(deadline=None, max_examples=60)
@given(skips=SKIPS, every=st.sampled_from([1, 5, 10, 25]), lag=st.booleans(), known=st.booleans())
def test_each_skip_of_a_cosine_is_counted_between_its_records(
    skips: list[int], every: int, lag: bool, known: bool
) -> None:
    step, lr = log(skips, every, cosine, lag=int(lag))
    found = skips_by_rate(step, lr, planned=STEPS if known else None, may_lag=lag)
    assert found is not None
    rows = np.flatnonzero(found.known)
    counted = np.concatenate(([0], np.cumsum(by_row(skips, step, every))))
    told = found.skipped[rows]
    assert (told <= np.diff(counted[rows + 1], prepend=0) + (step[rows] <= 2 * every)).all()
    assert found.skipped.sum() <= len(skips)
    if known and every > 1:  # the last steps are too flat, and of the peak nothing is known
        assert found.skipped.sum() >= len(skips) - sum(s > STEPS - 80 for s in skips)


def test_the_peak_that_lies_in_the_warm_up_is_no_part_of_the_decay() -> None:
    """Its rate is one of the warm-up, which the decay has at another step."""
    step = np.arange(50, STEPS + 1, 50)
    for warmup in (100, 130):
        taken = step - 1.0
        falling = BASE * (STEPS - taken) / (STEPS - warmup)
        lr = np.where(taken < warmup, BASE * taken / warmup, falling)
        found = skips_by_rate(step, lr, planned=STEPS, may_lag=True)
        assert found is not None
        assert not found.skipped.any()


@pytest.mark.parametrize("told", [1, 2, 5])
def test_one_step_that_may_be_the_lag_is_not_counted(told: int) -> None:
    step, lr = log(list(range(1, told + 1)), 10, cosine)
    found = skips_by_rate(step, lr, planned=STEPS)
    assert found is not None
    assert found.skipped.sum() == told - 1


def test_the_same_offset_is_a_skip_where_no_version_lags() -> None:
    step, lr = log([3], 10, linear)
    found = skips_by_rate(step, lr, planned=STEPS, may_lag=False)
    assert found is not None
    assert (found.lag, found.skipped[0], found.skipped.sum()) == (0, 1, 1)


def test_a_lag_and_skips_are_told_apart() -> None:
    step, lr = log([3, 4, 120], 10, linear, lag=1)
    found = skips_by_rate(step, lr, planned=STEPS, may_lag=True)
    assert found is not None
    assert found.lag == 1
    assert found.skipped.sum() == 3
    assert found.skipped[0] == 2


def test_the_curve_of_a_cosine_is_not_taken_for_skips() -> None:
    step, lr = log([], 10, cosine)
    found = skips_by_rate(step, lr, planned=STEPS, may_lag=False)
    assert found is None or found.skipped.sum() == 0


@pytest.mark.parametrize(
    "lr",
    [
        np.full(50, 1e-4),
        np.zeros(50),
        np.full(50, np.nan),
        1e-4 / np.sqrt(np.arange(1, 51)),
        1e-4 * 0.9 ** (np.arange(50) // 10),
        np.random.default_rng(0).uniform(1e-5, 1e-4, 50),
        np.tile([1e-4, 2e-4, 3e-4, 4e-4, 5e-4], 10),
    ],
    ids=["constant", "zero", "absent", "inverse-sqrt", "steps", "noise", "cycles"],
)
def test_other_schedules_tell_nothing(lr: np.ndarray) -> None:
    found = skips_by_rate(np.arange(10, 510, 10), lr)
    assert found is None or found.skipped.sum() == 0


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.one_of(st.floats(allow_nan=True), st.sampled_from([0.0, 1e-5, 2e-5])), max_size=40)
)
def test_any_rates_give_counts_that_are_not_negative(rates: list[float]) -> None:
    step = np.arange(1, len(rates) + 1) * 10
    with np.errstate(all="ignore"):
        found = skips_by_rate(step, np.array(rates, dtype=float), planned=500)
    assert found is None or (found.skipped >= 0).all()
