"""nonfinite-loss: when it began, from when on every step is bad, and what fits as a cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.nonfinite_loss import nonfinite_loss
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of, with_values


def test_fires_on_a_loss_that_never_comes_back() -> None:
    columns = calm(1000)
    columns["loss"][699] = 2.41
    columns["loss"][700:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (700, 999)
    assert finding.message == "loss is NaN from step 700 on (last finite value 2.41 at 699)"
    assert finding.evidence[0].steps == (698, 699, 700, 701)


def test_finite_losses_among_the_bad_ones_are_told_too() -> None:
    columns = calm(200)
    columns["loss"][150:] = NAN
    columns["loss"][149], columns["loss"][155] = 2.41, 7.5
    (finding,) = found(nonfinite_loss, run_of(columns))
    assert finding.message == (
        "loss is NaN first at step 150, and at every step from 156 on (last finite value 2.41 at "
        "149 before it; the last finite one of all 7.5 at 155)"
    )


def test_a_loss_that_never_comes_back_says_where_to_resume() -> None:
    columns = calm(200)
    columns["loss"][150:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns, FP32))
    assert finding.remedy.endswith("resume from a checkpoint of step 149 or before.")
    columns["loss"][151:] = 2.0
    (finding,) = found(nonfinite_loss, run_of(columns, FP32))
    assert "resume from" not in finding.remedy


def test_fires_as_a_warning_on_one_bad_batch_that_was_skipped() -> None:
    columns = calm(300)
    columns["loss"][120] = INF
    columns["skipped"][120] = True
    (finding,) = found(nonfinite_loss, run_of(columns, FP32))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (120, 120)
    assert finding.message.startswith("loss is inf at step 120 (")
    assert finding.message.endswith("finite again after it")


def test_fires_as_an_error_on_bad_batches_that_come_again() -> None:
    columns = calm(2000)
    columns["loss"][[100, 900, 1700]] = NAN
    columns["skipped"][[100, 900, 1700]] = True
    findings = found(nonfinite_loss, run_of(columns))
    assert [f.first_step for f in findings] == [100, 900, 1700]
    columns["loss"][np.arange(0, 1500, 150)] = NAN
    columns["loss"][[100, 900]] = 2.0
    columns["loss"][50:60] = NAN
    assert found(nonfinite_loss, run_of(columns))[0].severity is Severity.ERROR


def test_fires_with_the_step_from_which_on_every_loss_is_bad() -> None:
    columns = calm(200)
    columns["loss"][[100, 120]] = NAN
    columns["loss"][150:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns))
    assert "first at step 100, and at every step from 150 on" in finding.message


def test_fires_on_the_first_row() -> None:
    (finding,) = found(nonfinite_loss, run_of(calm(50, loss=np.full(50, NAN))))
    assert "no finite value before it" in finding.message
    assert "first logged step" in finding.cause


def test_a_log_that_alternates_for_ever_is_told_in_a_dozen_findings() -> None:
    columns = calm(30_000)
    columns["loss"][::150] = NAN
    findings = found(nonfinite_loss, run_of(columns))
    assert len(findings) == 12
    assert "in 189 stretches" in findings[-1].message
    assert findings[-1].last_step == 29_850


def test_in_fp16_a_smaller_scale_is_never_the_advice() -> None:
    columns = calm(400, scaler_scale=np.full(400, 65536.0))
    columns["loss"][300:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns, FP16))
    assert "calm" in finding.cause
    assert "65,504" in finding.cause
    assert "A smaller loss scale cannot help" in finding.remedy
    assert "bf16" in finding.remedy


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_is_no_advice_where_it_is_not_fp16(precision: str) -> None:
    columns = calm(400)
    columns["loss"][300:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns, replace(FP32, precision=precision)))
    assert "bf16" not in finding.cause + finding.remedy
    assert "log" in finding.cause
    assert "labels are all ignored" in finding.cause


def test_a_norm_that_grew_before_is_the_cause() -> None:
    columns = calm(400)
    columns["grad_l2_pre_clip"][290:300] = 1.5 ** np.arange(10)
    columns["loss"][300:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns, replace(FP32, max_norm=None)))
    assert "diverging" in finding.cause
    assert "learning rate" in finding.remedy
    assert "clip" in finding.remedy
    clipped = found(nonfinite_loss, run_of(columns, replace(FP32, max_norm=1.0)))
    assert "clip" not in clipped[0].remedy


def test_a_bad_update_before_is_the_cause() -> None:
    columns = calm(400)
    columns["grad_l2_pre_clip"][299:] = NAN
    columns["loss"][300:] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns))
    assert "took a non-finite gradient" in finding.cause
    columns["lr"][299] = NAN
    (finding,) = found(nonfinite_loss, run_of(columns))
    assert "learning rate is non-finite" in finding.cause


def test_silent_on_finite_losses_and_on_cells_that_are_absent() -> None:
    assert found(nonfinite_loss, run_of(calm(100))) == []
    columns = calm(100)
    columns["loss"][40:60] = NAN
    absent = {"loss": with_values(np.ones(100, bool), slice(40, 60), False)}
    assert found(nonfinite_loss, run_of(columns, masks=absent)) == []


def test_skipped_without_a_loss_column() -> None:
    assert nonfinite_loss.why_skipped(run_of(calm(10, loss=None))) == "no loss column"
