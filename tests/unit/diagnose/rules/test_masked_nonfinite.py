"""masked-nonfinite: losses that look fine while the norm is NaN."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.masked_nonfinite import masked_nonfinite
from tests.unit.diagnose.grad_scaler import healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import NAN, calm, run_of, with_values


def test_fires_on_a_loss_of_exactly_zero() -> None:
    columns = calm(60, skipped=None)
    columns["loss"][40] = 0.0
    columns["grad_l2_pre_clip"][40] = NAN
    (finding,) = found(masked_nonfinite, run_of(columns))
    assert finding.severity is Severity.ERROR
    assert finding.first_step == 40
    assert finding.message.startswith("loss is exactly 0 at step 40 while the gradient norm is NaN")


def test_fires_on_a_loss_that_stands_still() -> None:
    columns = calm(60)
    columns["loss"][40:] = columns["loss"][39]
    columns["grad_l2_pre_clip"][40:] = NAN
    (finding,) = found(masked_nonfinite, run_of(columns))
    assert (finding.first_step, finding.last_step) == (40, 59)
    assert "stands still" in finding.message


def test_fires_on_losses_that_vanish() -> None:
    columns = calm(60)
    columns["grad_l2_pre_clip"][40:50] = NAN
    columns["loss"][40:50] = NAN
    gone = {"loss": with_values(np.ones(60, bool), slice(40, 50), False)}
    (finding,) = found(masked_nonfinite, run_of(columns, masks=gone))
    assert (finding.first_step, finding.last_step) == (40, 49)
    assert "no loss is written" in finding.message


def test_silent_on_honest_logs() -> None:
    columns = calm(60)
    columns["loss"][40:] = NAN
    columns["grad_l2_pre_clip"][40:] = NAN
    assert found(masked_nonfinite, run_of(columns)) == []
    assert found(masked_nonfinite, run_of(healthy_columns(3000, 0))) == []


def test_silent_where_a_zero_or_a_repeat_is_honest() -> None:
    zero = calm(60, loss=np.zeros(60))
    zero["grad_l2_pre_clip"][40] = NAN
    assert found(masked_nonfinite, run_of(zero)) == []
    stalled = calm(60)
    stalled["loss"][40:] = 2.0
    stalled["grad_l2_pre_clip"][40:] = NAN
    stalled["skipped"][40:] = True
    assert found(masked_nonfinite, run_of(stalled)) == []


def test_silent_on_one_value_that_is_missing() -> None:
    columns = calm(60)
    columns["grad_l2_pre_clip"][40] = NAN
    gone = {"loss": with_values(np.ones(60, bool), 40, False)}
    assert found(masked_nonfinite, run_of(columns, masks=gone)) == []


def test_fires_on_a_loss_switched_off_where_no_norm_is_logged() -> None:
    columns = calm(400, grad_l2_pre_clip=None, grad_l2_post_clip=None)
    columns["loss"][250:] = 0.0
    (finding,) = found(masked_nonfinite, run_of(columns))
    assert (finding.first_step, finding.last_step) == (250, 399)
    assert finding.message.startswith("loss is exactly 0 from step 250 to the end, after ")
    columns["loss"] = calm(400)["loss"]
    columns["loss"][390:] = 0.0
    assert found(masked_nonfinite, run_of(columns)) == []


def test_silent_on_a_loss_that_was_on_its_way_to_zero() -> None:
    columns = calm(400, grad_l2_pre_clip=None, grad_l2_post_clip=None)
    columns["loss"] = np.maximum(0.0, 2.0 - np.arange(400) / 100)
    assert found(masked_nonfinite, run_of(columns)) == []
    columns["loss"] = np.round(2.0 * np.exp(-np.arange(400) / 60), 2)
    assert found(masked_nonfinite, run_of(columns)) == []
    columns["loss"] = np.where(np.random.default_rng(0).random(400) < 0.5, 0.0, 1.5)
    columns["loss"][300:] = 0.0
    assert found(masked_nonfinite, run_of(columns)) == []
