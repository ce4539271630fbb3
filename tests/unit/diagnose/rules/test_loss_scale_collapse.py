"""loss-scale-collapse: below 1, at the floor, or on the way to where the scaler writes NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_scale_collapse import loss_scale_collapse
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, limits, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, INF, NAN, calm, run_of


def collapsing(rows: int, start: int, stop: int | None = None, floor: float = -400) -> dict:
    limit = limits(rows, 0)
    limit[start:stop] = -400
    scale, skipped = run_scaler(limit, Policy(floor_log2=floor))
    columns = calm(rows, scaler_scale=scale, skipped=skipped)
    columns["grad_l2_pre_clip"][skipped] = INF
    return columns


def test_fires_as_critical_where_the_scaler_itself_would_write_nan() -> None:
    columns = collapsing(4000, 3000)
    (finding,) = found(loss_scale_collapse, run_of(columns))
    poison = int(np.flatnonzero(columns["scaler_scale"] <= 2.0**-128)[0])
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (3000, 3999)
    assert f"from {poison:,} on it is at most 2^-128" in finding.message


def test_fires_with_the_step_at_which_it_would() -> None:
    columns = {name: values[:3040] for name, values in collapsing(4000, 3000).items()}
    columns["loss"][3000:] = NAN
    (finding,) = found(loss_scale_collapse, run_of(columns))
    assert finding.severity is Severity.ERROR
    poison = np.flatnonzero(collapsing(4000, 3000)["scaler_scale"] <= 2.0**-128)[0]
    projected = int(finding.message.rsplit("at step ", 1)[1].replace(",", ""))
    assert abs(projected - poison) <= 1
    assert "applied after the loss" in finding.cause


def test_fires_on_a_slow_decline() -> None:
    rows = 40_000
    limit = limits(rows, 1) - 24 * np.clip((np.arange(rows) - 10_000) / 30_000, 0, 1)
    scale, skipped = run_scaler(limit, Policy(interval=1000, floor_log2=-400))
    columns = calm(rows, scaler_scale=scale, skipped=skipped)
    (finding, *_) = found(loss_scale_collapse, run_of(columns))
    assert finding.severity is Severity.ERROR
    assert 7000 <= finding.first_step <= 13_000


def test_fires_at_the_floor_where_steps_are_still_skipped() -> None:
    (finding,) = found(loss_scale_collapse, run_of(collapsing(4000, 3000, floor=0.0), FP16))
    assert finding.severity is Severity.ERROR
    assert finding.first_step == 3000
    reached = 3000 + int(np.argmin(collapsing(4000, 3000, floor=0.0)["scaler_scale"][3000:]))
    assert f"to its floor of 1, reached at {reached:,}: " in finding.message
    assert "scale of 1 and below" in finding.cause


def test_fires_at_a_floor_that_the_policy_sets() -> None:
    assert FP16.scaler is not None
    manifest = replace(FP16, scaler=replace(FP16.scaler, floor=128.0))
    (finding,) = found(loss_scale_collapse, run_of(collapsing(4000, 3000, floor=7.0), manifest))
    assert "floor of 128" in finding.message


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_advice_fits_the_precision(precision: str) -> None:
    manifest = replace(FP16, precision=precision)
    (finding,) = found(loss_scale_collapse, run_of(collapsing(4000, 3000), manifest))
    assert f"In {precision} no loss scale is needed" in finding.remedy
    assert "Run in bf16" not in finding.remedy


def test_silent_on_calibrations_and_on_swings_that_come_back() -> None:
    for policy in (Policy(32.0, 1000, 2), Policy(), Policy(16.0, 50)):
        assert found(loss_scale_collapse, run_of(healthy_columns(6000, 0, policy=policy))) == []
    limit = limits(30_000, 0)
    limit[10_000:10_020] = 1.5
    scale, skipped = run_scaler(limit, Policy(interval=500))
    assert (
        found(loss_scale_collapse, run_of(calm(30_000, scaler_scale=scale, skipped=skipped))) == []
    )


def test_silent_without_a_scaler() -> None:
    assert found(loss_scale_collapse, run_of(calm(500))) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_scale_written_0_is_told_as_written_and_not_as_overflow(lost: bool) -> None:
    columns = calm(600, scaler_scale=np.where(np.arange(600) < 400, 65536.0, 0.0))
    if lost:
        columns["grad_l2_pre_clip"][400:] = NAN
        columns["skipped"][400:] = True
    (finding,) = found(loss_scale_collapse, run_of(columns))
    assert finding.severity is Severity.CRITICAL
    assert finding.first_step == 399
    assert finding.message.startswith("loss scale was set from 65,536 to 0 after step 399")
    assert "without an overflow" in finding.message
    assert "No scaler lowers its scale so far" in finding.cause
    assert "bf16" not in finding.remedy
    verdict = diagnose(run_of(columns).run).verdict
    assert verdict.root == 0
    assert verdict.summary.startswith("Loss scale was set from 65,536 to 0")


@pytest.mark.parametrize(
    ("scale", "severity"), [(0.25, Severity.WARNING), (1e-60, Severity.CRITICAL)]
)
def test_fires_on_a_scale_that_was_low_when_the_log_began(scale: float, severity: Severity) -> None:
    (finding,) = found(loss_scale_collapse, run_of(calm(50, scaler_scale=np.full(50, scale))))
    assert finding.severity is severity
    assert finding.message.endswith(
        "in all of the log, where 1/scale is Inf: it collapsed before"
    ) == (severity is Severity.CRITICAL)


def test_silent_on_a_low_scale_that_grows() -> None:
    scale = np.repeat([0.5, 1.0, 2.0], 100)
    assert not found(loss_scale_collapse, run_of(calm(300, scaler_scale=scale)))
