"""loss-scale-oscillation: deep swings that come again, and sawtooths that cost a tenth."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_scale_oscillation import loss_scale_oscillation
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, limits, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, calm, run_of


def swinging(rows: int, starts: np.ndarray, depth: float, interval: int) -> dict:
    """Stretches of 25 hard steps that take the scale down; in between it climbs again."""
    limit = np.full(rows, 17.5) + 0.2 * np.random.default_rng(0).normal(size=rows)
    for start in starts:
        limit[start : start + 25] -= depth
    scale, skipped = run_scaler(limit, Policy(16.0, interval))
    return calm(rows, scaler_scale=scale, skipped=skipped)


@pytest.mark.parametrize("interval", [200, 500])
def test_fires_on_swings_that_come_again(interval: int) -> None:
    starts = np.arange(2000, 39_000, 3000)
    (finding,) = found(loss_scale_oscillation, run_of(swinging(40_000, starts, 7.0, interval)))
    assert finding.severity is Severity.WARNING
    assert abs(finding.first_step - 2000) <= 2
    assert finding.last_step >= 38_000
    assert f"growth interval {interval}" in finding.message


def test_fires_on_a_sawtooth_that_costs_every_fifth_step() -> None:
    columns = healthy_columns(400, 0, policy=Policy(16.0, 4))
    (finding,) = found(loss_scale_oscillation, run_of(columns))
    assert "growth interval of 4 steps" in finding.cause
    assert "Raise the growth interval" in finding.remedy


def test_fires_on_falls_at_a_multiple_of_the_policys_rate() -> None:
    rows = 20_000
    log2 = np.full(rows, 14.0)
    for start in range(4000, rows, 300):
        log2[start : start + 150] = 13.0
    skipped = np.append(np.diff(log2) < 0, False)
    columns = calm(rows, scaler_scale=np.exp2(log2), skipped=skipped)
    (finding,) = found(loss_scale_oscillation, run_of(columns, FP16))
    assert 3900 <= finding.first_step <= 4100


@pytest.mark.parametrize("interval", [20, 50, 200, 1000, 2000])
def test_silent_on_a_healthy_sawtooth(interval: int) -> None:
    for noise in ("gaussian", "t3", "bursty"):
        columns = healthy_columns(20_000, 1, noise, Policy(16.0, interval))
        assert found(loss_scale_oscillation, run_of(columns)) == []


def test_silent_on_three_swings_and_on_one_long_fall() -> None:
    three = swinging(40_000, np.array([2000, 7000, 12_000]), 7.0, 500)
    assert found(loss_scale_oscillation, run_of(three)) == []
    limit = limits(5000, 0)
    limit[3000:] = -400
    scale, skipped = run_scaler(limit, Policy(floor_log2=-400))
    fall = calm(5000, scaler_scale=scale, skipped=skipped)
    assert found(loss_scale_oscillation, run_of(fall)) == []


def test_silent_without_a_scaler() -> None:
    assert found(loss_scale_oscillation, run_of(calm(500))) == []
