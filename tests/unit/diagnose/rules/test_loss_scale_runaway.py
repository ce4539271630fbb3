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
