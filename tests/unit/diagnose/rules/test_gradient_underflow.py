"""gradient-underflow: scaled elements beside the smallest number of fp16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.gradient_underflow import gradient_underflow
from forensics.runlog.manifest import ParameterInfo, ScalerPolicy
from tests.unit.diagnose.grad_scaler import healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, calm, run_of

PARAMETERS = (
    ParameterInfo("body.weight", (1000, 1000)),
    ParameterInfo("frozen.weight", (9000, 9000), requires_grad=False),
)
UNSCALED = replace(FP16, scaler=ScalerPolicy(), parameters=PARAMETERS)
SCALED = replace(FP16, parameters=PARAMETERS)


def test_fires_on_elements_below_the_smallest_number() -> None:
    columns = calm(500, grad_l2_pre_clip=np.full(500, 2e-5))
    (finding,) = found(gradient_underflow, run_of(columns, UNSCALED))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (0, 499)
    assert "about 2^-26" in finding.message
    assert "fp16 without a loss scaler" in finding.cause


def test_fires_as_a_warning_close_to_it() -> None:
    columns = calm(500, grad_l2_pre_clip=np.full(500, 3e-4))
    (finding,) = found(gradient_underflow, run_of(columns, UNSCALED))
    assert finding.severity is Severity.WARNING


def test_fires_from_the_step_on_at_which_they_shrank() -> None:
    columns = healthy_columns(3000, 0)
    norm = np.array(columns["grad_l2_pre_clip"])
    norm[2000:] = 1e-10
    scale = np.where(np.arange(3000) < 500, columns["scaler_scale"], 4096.0)
    columns = {**columns, "grad_l2_pre_clip": norm, "scaler_scale": scale}
    (finding,) = found(gradient_underflow, run_of(columns, SCALED))
    assert abs(finding.first_step - 2000) <= 1
    assert "shrank faster than the loss scale grew" in finding.cause
    assert "Use a GradScaler" not in finding.remedy


def test_fires_on_gradients_of_zero_only_without_a_scaler() -> None:
    columns = calm(100, grad_l2_pre_clip=np.zeros(100))
    (finding,) = found(gradient_underflow, run_of(columns, UNSCALED))
    assert "exactly 0" in finding.message
    columns["scaler_scale"] = np.full(100, 65536.0)
    assert found(gradient_underflow, run_of(columns, SCALED)) == []


def test_silent_on_sound_gradients_and_a_few_small_ones() -> None:
    columns = healthy_columns(5000, 0)
    assert found(gradient_underflow, run_of(columns, SCALED)) == []
    norm = np.array(columns["grad_l2_pre_clip"])
    norm[1000:3000:100] = 1e-12
    assert found(gradient_underflow, run_of({**columns, "grad_l2_pre_clip": norm}, SCALED)) == []


def test_silent_in_other_precisions_and_where_the_size_is_not_known() -> None:
    columns = calm(500, grad_l2_pre_clip=np.full(500, 2e-5))
    assert found(gradient_underflow, run_of(columns, replace(FP32, parameters=PARAMETERS))) == []
    assert found(gradient_underflow, run_of(columns, replace(UNSCALED, parameters=()))) == []
