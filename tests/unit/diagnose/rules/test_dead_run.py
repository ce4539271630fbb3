"""dead-run: the tail in which nothing was learned, and what it cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.dead_run import dead_run
from forensics.runlog.run import CheckpointInfo
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, limits, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of


def test_fires_on_losses_that_stay_nan() -> None:
    columns = calm(1000)
    columns["loss"][660:] = NAN
    (finding,) = found(dead_run, run_of(columns))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (660, 999)
    assert finding.message == (
        "nothing was learned from step 660 on: all 340 steps until the end are non-finite "
        "(34 % of the run)"
    )


def test_fires_on_steps_that_are_all_skipped_and_names_the_checkpoint() -> None:
    columns = calm(1000, scaler_scale=np.full(1000, 65536.0))
    columns["skipped"][900:] = True
    columns["grad_l2_pre_clip"][900:] = INF
    saved = [CheckpointInfo(s, Path(f"step-{s}.pt"), True, {}) for s in (400, 800, 950)]
    (finding,) = found(dead_run, run_of(columns, FP16, checkpoints=saved))
    assert finding.first_step == 900
    assert "were skipped" in finding.message
    assert "before step 800" in finding.remedy


def test_fires_through_rows_that_say_nothing() -> None:
    columns = calm(100)
    columns["loss"][50:] = NAN
    said = np.ones(100, bool)
    said[60::2] = False
    masks = dict.fromkeys(("loss", "grad_l2_pre_clip", "skipped"), said)
    (finding,) = found(dead_run, run_of(columns, masks=masks))
    assert finding.first_step == 50


def test_fires_on_a_hidden_poison_without_a_skip_column() -> None:
    columns = calm(200, skipped=None)
    columns["grad_l2_pre_clip"][150:] = NAN
    assert found(dead_run, run_of(columns))[0].first_step == 150


@pytest.mark.parametrize("start", [16.0, 32.0])
def test_silent_where_the_log_ends_in_the_calibration(start: float) -> None:
    scale, skipped = run_scaler(np.full(12, -40.0), Policy(start, hysteresis=2))
    assert skipped.all()
    columns = calm(12, scaler_scale=scale, skipped=skipped)
    columns["grad_l2_pre_clip"][:] = INF
    assert found(dead_run, run_of(columns)) == []
    del columns["scaler_scale"]
    assert found(dead_run, run_of(columns)) == []


def test_silent_on_a_last_overflow_and_on_a_few_bad_rows() -> None:
    columns = healthy_columns(3000, 3)
    columns["skipped"][-1] = True
    columns["grad_l2_pre_clip"][-1] = INF
    assert found(dead_run, run_of(columns)) == []
    few = calm(100)
    few["loss"][97:] = NAN
    assert found(dead_run, run_of(few)) == []


def test_silent_where_steps_are_taken_again() -> None:
    scale, skipped = run_scaler(limits(3000, 4), Policy(16.0))
    columns = calm(3000, scaler_scale=scale, skipped=skipped)
    columns["loss"][100:400] = NAN
    assert found(dead_run, run_of(columns)) == []


def test_an_optimizer_that_never_stepped_is_named() -> None:
    skipped = np.ones(200, dtype=bool)
    (finding,) = found(dead_run, run_of(calm(200, skipped=skipped), FP32))
    assert "with finite loss and norm: the optimizer never stepped" in finding.message
    assert "does not call optimizer.step()" in finding.cause
    assert "Call optimizer.step() after each backward" in finding.remedy


def test_a_guard_that_refuses_the_rest_of_a_run_is_no_forgotten_step() -> None:
    skipped = np.arange(200) >= 100
    (finding,) = found(dead_run, run_of(calm(200, skipped=skipped), FP32))
    assert "never stepped" not in finding.message
    assert "optimizer.step()" not in finding.remedy
