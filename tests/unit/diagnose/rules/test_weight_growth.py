"""weight-growth: a matrix that grows and does not slow down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.weight_growth import weight_growth
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import (
    NAMES,
    any_run,
    assert_sane,
    found,
    manifest_of,
    signals_of,
    store,
)


def norms(course: np.ndarray, column: int = 4) -> np.ndarray:
    values = np.full((len(course), 8), 10.0)
    values[:, column] = course
    return values


def test_fires_on_exponential_growth_from_its_onset() -> None:
    course = np.full(100, 10.0)
    course[60:] *= np.geomspace(1, 40, 40)
    (finding,) = found(weight_growth, signals_of(store({"value_l2": norms(course)})))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[4]
    assert 600 <= finding.first_step <= 630
    assert finding.last_step == 990
    assert "×" in finding.message


def test_fires_as_info_on_a_straight_line_of_a_few_times() -> None:
    (finding,) = found(
        weight_growth, signals_of(store({"value_l2": norms(np.linspace(10, 50, 100))}))
    )
    assert finding.severity is Severity.INFO


def test_fires_when_the_end_is_nan() -> None:
    course = 10 * np.geomspace(1, 100, 100)
    course[80:] = np.nan
    (finding,) = found(weight_growth, signals_of(store({"value_l2": norms(course)})))
    assert finding.last_step == 790


@pytest.mark.parametrize(
    "course",
    [
        10 * np.sqrt(1 + np.arange(100.0)),  # random drift
        10 + 200 * (1 - np.exp(-np.arange(100) / 20)),  # held by weight decay
        10 * np.geomspace(1, 2, 100),  # what sound training does
        np.full(100, 10.0),
    ],
)
def test_silent_where_growth_slows_down_or_is_small(course: np.ndarray) -> None:
    assert not found(weight_growth, signals_of(store({"value_l2": norms(course)})))


def test_silent_on_matrices_that_start_near_zero_and_on_biases() -> None:
    course = np.linspace(1e-4, 10, 100)
    params = store({"value_l2": norms(course)})
    assert not found(weight_growth, signals_of(params, manifest=manifest_of(shape=(64, 64))))
    names = [*NAMES[:4], "head.bias", *NAMES[5:]]
    growing = norms(10 * np.geomspace(1, 40, 100))
    assert not found(weight_growth, signals_of(store({"value_l2": growing}, names)))


def test_silent_with_few_snapshots_or_steps() -> None:
    few = norms(10 * np.geomspace(1, 40, 8))
    assert not found(weight_growth, signals_of(store({"value_l2": few})))
    soon = store({"value_l2": norms(10 * np.geomspace(1, 40, 50))}, steps=np.arange(50))
    assert not found(weight_growth, signals_of(soon))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(weight_growth, signals)
