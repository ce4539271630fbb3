"""loss-scale-runaway: a scale that nothing stops, since no gradient arrives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_scale_runaway import loss_scale_runaway
from forensics.runlog.manifest import ParameterInfo
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, calm, run_of


def growing(rows: int, norm: object, start: float = 16.0) -> dict:
    scale, skipped = run_scaler(np.full(rows, 300.0), Policy(start, 500))
    return calm(rows, scaler_scale=scale, skipped=skipped, grad_l2_pre_clip=norm)


def test_fires_on_a_norm_of_zero() -> None:
    (finding,) = found(loss_scale_runaway, run_of(growing(10_000, np.zeros(10_000))))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == 4000
    assert finding.last_step == 9999
    assert finding.message.startswith("loss scale grew from 65,536 to 2^35")
    assert "norm is 0" in finding.message


def test_fires_on_gradients_far_below_fp16() -> None:
    manifest = replace(FP16, parameters=(ParameterInfo("w", (1000, 1000)),))
    columns = growing(10_000, np.full(10_000, 1e-18))
    (finding,) = found(loss_scale_runaway, run_of(columns, manifest))
    assert finding.first_step == 4000
    assert found(loss_scale_runaway, run_of(columns)) == []


def test_silent_on_ordinary_gradients_at_a_large_scale() -> None:
    assert found(loss_scale_runaway, run_of(growing(10_000, np.full(10_000, 0.3)))) == []
    columns = healthy_columns(3000, 0, policy=Policy(32.0, 1000, 2))
    assert found(loss_scale_runaway, run_of(columns)) == []


def test_silent_on_a_scale_that_only_starts_large_or_a_norm_printed_as_zero() -> None:
    assert found(loss_scale_runaway, run_of(growing(400, np.zeros(400), 32.0))) == []
    printed = np.zeros(10_000)
    printed[:2000] = 0.002
    assert found(loss_scale_runaway, run_of(growing(10_000, printed))) == []


def test_silent_on_a_few_steps_without_gradients() -> None:
    norm = np.full(10_000, 0.3123456)
    norm[9000:9005] = 0
    assert found(loss_scale_runaway, run_of(growing(10_000, norm))) == []


def beyond(rows: int, norm: object, interval: int = 25) -> dict:
    scale = 65536.0 * 2.0 ** (np.arange(rows) // interval)
    return calm(rows, scaler_scale=scale, grad_l2_pre_clip=norm)


def test_fires_on_ordinary_gradients_that_no_fp16_can_hold_at_that_scale() -> None:
    columns = beyond(3000, np.exp(0.2 * np.random.default_rng(0).normal(size=3000)))
    for manifest in (None, FP16):
        (finding,) = found(loss_scale_runaway, run_of(columns, manifest))
        assert 490 <= finding.first_step <= 530
        assert finding.last_step == 2999
        assert "65,536 to 2^135 and is beyond float32 without an overflow" in finding.message
        assert "although the gradient norm is 0.98" in finding.message
        assert "bf16" in finding.remedy


def test_silent_where_the_norm_is_of_scaled_gradients_or_the_precision_needs_no_scaler() -> None:
    scale = 65536.0 * 2.0 ** (np.arange(600) // 25)
    assert found(loss_scale_runaway, run_of(beyond(600, 0.3123 * scale))) == []
    bf16 = replace(FP16, precision="bf16")
    assert found(loss_scale_runaway, run_of(beyond(3000, np.full(3000, 0.3)), bf16)) == []
