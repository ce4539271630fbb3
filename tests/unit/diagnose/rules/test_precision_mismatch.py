"""precision-mismatch: scaler, precision and device, by run.json and the scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.precision_mismatch import precision_mismatch
from forensics.runlog.manifest import ScalerPolicy
from tests.unit.diagnose.grad_scaler import healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, calm, run_of


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_fires_on_a_scaler_that_is_not_needed(precision: str) -> None:
    manifest = replace(FP32, precision=precision)
    (finding,) = found(precision_mismatch, run_of(healthy_columns(5000, 0), manifest))
    assert finding.severity is Severity.WARNING
    assert finding.last_step == 4999
    assert f"a loss scaler is at work in {precision}" in finding.message


def test_fires_on_fp16_without_a_scaler() -> None:
    manifest = replace(FP16, scaler=ScalerPolicy())
    (finding,) = found(precision_mismatch, run_of(calm(100), manifest))
    assert "fp16 without loss scaling" in finding.message
    assert (finding.first_step, finding.last_step) == (0, 99)


def test_fires_on_autocast_for_another_device() -> None:
    manifest = replace(FP32, precision="bf16", device="cuda:1", autocast_device="cpu")
    (finding,) = found(precision_mismatch, run_of(calm(100), manifest))
    assert finding.severity is Severity.ERROR
    assert "autocast is for cpu" in finding.message


def test_silent_on_settings_that_fit() -> None:
    assert found(precision_mismatch, run_of(calm(100), FP32)) == []
    assert found(precision_mismatch, run_of(calm(100), replace(FP32, precision="bf16"))) == []
    assert found(precision_mismatch, run_of(healthy_columns(5000, 0), FP16)) == []
    cuda = replace(FP16, device="cuda:0", autocast_device="cuda")
    assert found(precision_mismatch, run_of(healthy_columns(100, 0), cuda)) == []


def test_silent_on_a_scaler_that_starts_at_one() -> None:
    manifest = replace(FP16, scaler=ScalerPolicy(enabled=True, init_scale=1.0))
    assert found(precision_mismatch, run_of(calm(100), manifest)) == []
    static = calm(100, scaler_scale=np.full(100, 128.0))
    assert found(precision_mismatch, run_of(static, FP32)) == []


def test_skipped_without_run_json() -> None:
    assert precision_mismatch.why_skipped(run_of(calm(10))) == "no run.json"
