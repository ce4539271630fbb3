"""loss-scale-frozen: skips that leave the scale as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_scale_frozen import loss_scale_frozen
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, INF, NAN, calm, run_of


def frozen(rows: int, skips: list[int], scale: float = 65536.0) -> dict:
    columns = calm(rows, scaler_scale=np.full(rows, scale))
    columns["skipped"][skips] = True
    columns["grad_l2_pre_clip"][skips] = INF
    return columns


def test_fires_on_two_skips_at_one_scale() -> None:
    (finding,) = found(loss_scale_frozen, run_of(frozen(20, [5, 6])))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (5, 6)
    assert finding.message == "2 steps skipped from 5 to 6 and the loss scale stayed at 65,536"
    assert "scaler.update()" in finding.cause


def test_fires_where_it_grows_and_never_falls() -> None:
    columns = frozen(5000, [1000, 1001, 3000])
    columns["scaler_scale"][2500:] *= 2
    (finding,) = found(loss_scale_frozen, run_of(columns))
    assert "did not fall once (it grew once from 65,536)" in finding.message


def test_fires_as_a_warning_where_only_losses_were_skipped() -> None:
    columns = frozen(100, [40, 60])
    columns["loss"][[40, 60]] = NAN
    (finding,) = found(loss_scale_frozen, run_of(columns))
    assert finding.severity is Severity.WARNING
    assert "before backward" in finding.cause


def test_fires_on_four_skips_where_the_scale_fell_before() -> None:
    columns = healthy_columns(6000, 0)
    columns["skipped"][5000:5004] = True
    columns["scaler_scale"][4990:5100] = 4096.0
    (finding,) = found(loss_scale_frozen, run_of(columns))
    assert (finding.first_step, finding.last_step) == (5000, 5003)


@pytest.mark.parametrize("lag", [0, 1])
def test_silent_where_the_scale_falls_as_it_should(lag: int) -> None:
    for policy in (Policy(), Policy(32.0, 1000, 2), Policy(16.0, 20)):
        columns = healthy_columns(8000, 0, policy=policy)
        scale = columns["scaler_scale"]
        columns["scaler_scale"] = np.append(scale[lag:], np.repeat(scale[-1], lag))
        assert found(loss_scale_frozen, run_of(columns)) == []


def test_silent_on_guards_on_hysteresis_and_on_a_floor() -> None:
    guard = frozen(100, [40, 60])
    guard["skip_reason"] = ["other" if i in (40, 60) else "" for i in range(100)]
    assert found(loss_scale_frozen, run_of(guard)) == []
    assert FP16.scaler is not None
    patient = replace(FP16, scaler=replace(FP16.scaler, hysteresis=3))
    assert found(loss_scale_frozen, run_of(frozen(100, [40, 60]), patient)) == []
    floor = replace(FP16, scaler=replace(FP16.scaler, floor=128.0))
    assert found(loss_scale_frozen, run_of(frozen(100, [40, 60], 128.0), floor)) == []


def test_silent_on_one_skip_and_where_no_scale_follows() -> None:
    assert found(loss_scale_frozen, run_of(frozen(20, [5]))) == []
    assert found(loss_scale_frozen, run_of(frozen(20, [5, 19]))) == []
    assert found(loss_scale_frozen, run_of(frozen(20, [5, 6], 1.0))) == []
