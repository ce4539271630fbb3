"""nonfinite-gradient: what a loss scaler makes is routine, what is left is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.nonfinite_gradient import nonfinite_gradient
from forensics.runlog.run import Run, load_run
from tests.unit.diagnose.grad_scaler import healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of


def test_fires_on_one_inf_in_fp32_and_names_the_parameter() -> None:
    columns = calm(20, skip_reason=[""] * 20)
    columns["grad_l2_pre_clip"][5] = INF
    columns["skipped"][5] = True
    columns["skip_reason"][5] = "nonfinite_grad:head.weight"
    (finding,) = found(nonfinite_gradient, run_of(columns, FP32))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == finding.last_step == 5
    assert finding.subject == "head.weight"
    assert "gradient norm is inf at step 5 while the loss is finite" in finding.message
    assert "skipped, and finite again" in finding.message


def test_fires_as_critical_where_nothing_is_finite_any_more() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][200:] = NAN
    columns["loss"][201:] = NAN
    (finding,) = found(nonfinite_gradient, run_of(columns))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (200, 299)
    assert "Resume from a checkpoint before step 200" in finding.remedy


def test_fires_where_no_loss_scale_helps() -> None:
    columns = healthy_columns(4000, 0)
    columns["grad_l2_pre_clip"][3000:] = NAN
    columns["skipped"][3000:] = True
    start = np.log2(columns["scaler_scale"][3000])
    columns["scaler_scale"][3000:] = np.exp2(np.maximum(start - np.arange(1000), -140))
    (finding,) = found(nonfinite_gradient, run_of(columns))
    assert finding.first_step == 3000
    assert "No loss scale helps" in finding.cause


def test_fires_with_the_growth_before_it_as_the_cause() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][190:200] = 4.0 ** np.arange(10)
    columns["grad_l2_pre_clip"][200:] = INF
    (finding,) = found(nonfinite_gradient, run_of(columns, FP32))
    assert "The run was diverging" in finding.cause
    assert "learning rate" in finding.remedy
    assert "bf16" not in finding.remedy


def test_fires_as_one_info_where_a_scaler_may_explain_it() -> None:
    columns = healthy_columns(6000, 1)
    del columns["scaler_scale"], columns["skipped"]
    (finding,) = found(nonfinite_gradient, run_of(columns))
    assert finding.severity is Severity.INFO
    bad = np.flatnonzero(~np.isfinite(columns["grad_l2_pre_clip"]))
    assert (finding.first_step, finding.last_step) == (bad[0], bad[-1])


def test_silent_on_the_routine_of_a_scaler() -> None:
    for lone in (healthy_columns(20_000, 2), calm(20, scaler_scale=np.full(20, 65536.0))):
        columns = dict(lone)
        columns["grad_l2_pre_clip"] = np.array(columns["grad_l2_pre_clip"])
        columns["skipped"] = np.array(columns["skipped"])
        columns["grad_l2_pre_clip"][5] = INF
        columns["skipped"][5] = True
        assert found(nonfinite_gradient, run_of(columns)) == []
        assert found(nonfinite_gradient, run_of(columns, FP16)) == []


def test_silent_where_the_loss_itself_is_bad_or_only_the_norm_overflowed() -> None:
    columns = calm(100, norm_overflow=np.zeros(100))
    columns["loss"][50] = NAN
    columns["grad_l2_pre_clip"][50] = NAN
    columns["grad_l2_pre_clip"][70] = INF
    columns["norm_overflow"][70] = 1
    assert found(nonfinite_gradient, run_of(columns)) == []


def test_skipped_without_a_norm_column() -> None:
    assert "grad_l2_pre_clip" in nonfinite_gradient.why_skipped(
        run_of(calm(10, grad_l2_pre_clip=None))
    )


def test_a_loss_that_reads_0_beside_a_nan_norm_is_not_called_finite() -> None:
    columns = calm(300)
    columns["grad_l2_pre_clip"][200:] = NAN
    columns["loss"][200:] = 0.0
    (finding,) = found(nonfinite_gradient, run_of(columns))
    assert "finite" not in finding.message
    assert "the loss reads 0" in finding.message
    assert finding.cause.startswith("The loss itself was NaN")
    assert "batch and the loss of step 200 first" in finding.remedy


def of_a_trainer(tmp_path: Path, rows: list[tuple[float, float]], every: int) -> Run:
    """What the Trainer's state of some losses and norms is read as."""
    history = [
        {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": 1e-4 * (1 - n * every / 1e3),
            "epoch": n / 10,
            "step": n * every,
        }
        for n, (loss, norm) in enumerate(rows, start=1)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history}))
    return load_run(path)


@pytest.mark.parametrize("healthy", [0, 20])
@pytest.mark.parametrize(("every", "told"), [(10, " or logging every step"), (1, "")])
def test_a_mean_that_leaves_nan_out_does_not_acquit_the_loss(
    tmp_path: Path, healthy: int, every: int, told: str
) -> None:
    """The Trainer logs a finite mean where a loss of the window was NaN."""
    rows = [(3.0 - n / 50, 1.0) for n in range(healthy)] + [(0.639, NAN)] + 5 * [(0.0, NAN)]
    report = diagnose(of_a_trainer(tmp_path, rows, every))
    assert report.verdict.root is not None
    finding = report.findings[report.verdict.root]
    first = (healthy + 1) * every
    assert (finding.rule, finding.first_step) == ("nonfinite-gradient", first)
    assert "beside a logged loss of 0.639, a mean that leaves NaN out" in finding.message
    assert "while the loss is finite" not in report.verdict.summary
    assert finding.cause.startswith("The log does not tell whether the loss was NaN first")
    covered = f"steps {first - 9:,} to {first:,}" if every > 1 else f"step {first}"
    assert f"the batch and the loss of {covered} first" in finding.remedy
    shown = f"`logging_nan_inf_filter=False`{told} shows it"
    assert sum(shown in question for question in report.verdict.undecided) == 1
    assert {report.findings[i].rule for i in report.verdict.consequences} >= {"nonfinite-loss"}


def test_a_loss_that_nobody_filters_is_finite() -> None:
    columns = calm(30, grad_l2_pre_clip=np.where(np.arange(30) < 20, 1.0, NAN))
    (finding,) = found(nonfinite_gradient, run_of(columns, FP32))
    assert "while the loss is finite (" in finding.message
    assert finding.cause.startswith("Born in backward")
