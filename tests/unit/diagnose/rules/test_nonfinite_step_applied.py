"""nonfinite-step-applied: the step that poisoned the weights, and logs that only look like it."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.nonfinite_step_applied import nonfinite_step_applied
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of


def test_fires_on_the_step_that_poisoned_the_weights() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][200:] = NAN
    columns["loss"][201:] = NAN
    (finding,) = found(nonfinite_step_applied, run_of(columns, FP32))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (200, 299)
    assert finding.message.startswith("step 200 was taken with a gradient norm of NaN")
    assert "skip the step where the norm" in finding.remedy


def test_fires_with_the_scaler_that_was_bypassed() -> None:
    columns = calm(300, scaler_scale=np.full(300, 65536.0))
    columns["grad_l2_pre_clip"][200:] = INF
    columns["loss"][201:] = NAN
    (finding,) = found(nonfinite_step_applied, run_of(columns, FP16))
    assert "went past the scaler" in finding.cause
    assert "scaler.step(optimizer)" in finding.remedy


def test_fires_as_info_where_the_run_goes_on() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][100] = NAN
    (finding,) = found(nonfinite_step_applied, run_of(columns))
    assert finding.severity is Severity.INFO
    assert "yet the run stays finite" in finding.message


def test_an_earlier_harmless_row_does_not_hide_the_poison() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][100] = NAN
    columns["grad_l2_pre_clip"][150:] = NAN
    (finding,) = found(nonfinite_step_applied, run_of(columns))
    assert (finding.severity, finding.first_step) == (Severity.CRITICAL, 150)


def test_silent_where_the_step_was_skipped_or_the_scale_fell() -> None:
    columns = healthy_columns(8000, 0)
    assert found(nonfinite_step_applied, run_of(columns)) == []
    columns["skipped"] = np.zeros(8000, dtype=bool)
    assert found(nonfinite_step_applied, run_of(columns)) == []


def test_silent_where_the_clip_made_the_update_nothing() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][50] = INF
    columns["grad_l2_post_clip"][50] = 0.0
    assert found(nonfinite_step_applied, run_of(columns)) == []


def test_a_fused_optimizer_in_a_calibration_is_no_poison() -> None:
    columns = healthy_columns(500, 0, policy=Policy(32.0, 1000, 2))
    columns["skipped"] = np.zeros(500, dtype=bool)
    findings = found(nonfinite_step_applied, run_of(columns))
    assert all(f.severity is Severity.INFO for f in findings)


def test_skipped_without_a_skip_column() -> None:
    assert "skipped" in nonfinite_step_applied.why_skipped(run_of(calm(10, skipped=None)))
