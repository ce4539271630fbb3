"""double-unscale: norms at the optimizer's entry that repeat the loss scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.double_unscale import double_unscale
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, INF, calm, run_of

MEASURED: Manifest = replace(FP16, post_clip="measured")
SCALE = 65536.0


def scaled(rows: int = 200, **columns: object) -> dict[str, object]:
    """A run whose clip acts in some steps, with a loss scale that has fallen once."""
    scale = np.where(np.arange(rows) < 40, SCALE, SCALE / 2)
    return calm(rows, scaler_scale=scale, **columns)


def twice() -> dict[str, object]:
    """The same, divided by the scale once more."""
    columns = scaled()
    columns["grad_l2_post_clip"] = columns["grad_l2_pre_clip"] / columns["scaler_scale"]
    return columns


def test_fires_where_the_optimizer_gets_the_norm_over_the_scale() -> None:
    (finding,) = found(double_unscale, run_of(twice(), MEASURED))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (0, 199)
    assert "once more divided by the loss scale of 65,536" in finding.message
    assert [e.signal for e in finding.evidence][-1] == "scaler_scale"


def test_fires_beside_steps_that_tell_nothing() -> None:
    columns = twice()
    columns["skipped"][:5] = True
    columns["grad_l2_pre_clip"][:5] = INF
    columns["grad_l2_post_clip"][:5] = np.nan
    assert found(double_unscale, run_of(columns, MEASURED))[0].first_step == 5


def test_silent_where_the_norms_cannot_tell() -> None:
    few = {name: values[:2] for name, values in twice().items()}
    assert found(double_unscale, run_of(few, MEASURED)) == []
    still_scaled = {**twice(), "grads_scaled": np.ones(200, dtype=bool)}
    assert found(double_unscale, run_of(still_scaled, MEASURED)) == []
    norm = scaled()["grad_l2_pre_clip"]
    small = scaled(grad_l2_post_clip=norm / 8) | {"scaler_scale": np.full(200, 8.0)}
    assert found(double_unscale, run_of(small, MEASURED)) == []


def test_norms_derived_from_the_coefficient_are_no_measurement() -> None:
    derived = replace(MEASURED, post_clip="derived")
    assert "measured" in double_unscale.why_skipped(run_of(twice(), derived))


def test_silent_on_a_sound_run_and_on_a_clip_that_happens_to_match_once() -> None:
    columns = scaled()
    assert found(double_unscale, run_of(columns, MEASURED)) == []
    columns["grad_l2_post_clip"][7:10] = columns["grad_l2_pre_clip"][7:10] / SCALE
    assert found(double_unscale, run_of(columns, MEASURED)) == []
