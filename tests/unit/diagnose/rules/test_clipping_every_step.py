import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.clipping_every_step import clipping_every_step
from forensics.diagnose.rules.clipping_frequent import clipping_frequent
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, signals_of


def clipped(rows: int, level: float, limit: float = 1.0, seed: int = 0) -> Columns:
    columns = healthy_columns("floor", seed, rows)
    rng = np.random.default_rng(seed)
    norm = level * np.exp(0.3 * rng.normal(size=rows))
    columns["grad_l2_pre_clip"] = norm
    columns["grad_l2_post_clip"] = np.minimum(norm, limit)
    return columns


@pytest.mark.parametrize("rows", [400, 2_000, 50_000])
def test_fires_as_an_info_with_the_threshold_it_read(rows: int) -> None:
    (finding,) = found(clipping_every_step, clipped(rows, 4.0, 0.25))
    assert finding.severity is Severity.INFO
    assert "clipped at 0.25 (read from the norms)" in finding.message
    assert "norm quantiles 50/90/99 %: " in finding.message
    assert "not a threshold to take" in finding.remedy


def test_the_threshold_of_run_json_is_enough() -> None:
    columns = clipped(1_000, 4.0)
    del columns["grad_l2_post_clip"]
    assert not found(clipping_every_step, columns)
    (finding,) = found(clipping_every_step, columns, Manifest(max_norm=1.0))
    assert "clipped at 1;" in finding.message


def test_without_either_the_rule_says_why_it_cannot_run() -> None:
    signals: Signals = signals_of({"grad_l2_pre_clip": np.ones(500)})
    assert "clip threshold" in clipping_every_step.why_skipped(signals)


def test_fires_as_a_warning_where_the_loss_never_falls() -> None:
    columns = clipped(4_000, 4.0)
    columns["loss"] = 2.3 * np.exp(0.02 * np.random.default_rng(1).normal(size=4_000))
    (finding,) = found(clipping_every_step, columns)
    assert finding.severity is Severity.WARNING
    assert "never fell" in finding.message


def test_fires_as_a_warning_where_the_loss_rises_for_good() -> None:
    columns = clipped(8_000, 4.0)
    columns["loss"] *= np.exp(np.maximum(0, np.arange(8_000) - 5_000) / 3_000)
    (finding,) = found(clipping_every_step, columns)
    assert finding.severity is Severity.WARNING
    assert "rises for good" in finding.message


def test_only_the_windows_concerned_are_told() -> None:
    columns = clipped(3_000, 0.2)
    columns["grad_l2_pre_clip"][1_500:2_200] = 5.0
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    (finding,) = found(clipping_every_step, columns)
    assert abs(finding.first_step - 1_500) <= 20
    assert abs(finding.last_step - 2_199) <= 20
    assert not found(clipping_frequent, columns), "the same steps are not told twice"


def test_nan_norms_are_left_out() -> None:
    columns = clipped(1_000, 4.0)
    columns["grad_l2_pre_clip"][::5] = np.nan
    assert "100 % of" in found(clipping_every_step, columns)[0].message


def test_silent_on_a_safety_net() -> None:
    assert not found(clipping_every_step, clipped(3_000, 0.3))
    assert not found(clipping_every_step, clipped(200, 4.0)), "fewer norms than a window"


def starved(optimizer: str | None) -> tuple[Columns, Manifest]:
    columns = clipped(1_000, 0.65, 0.001)
    columns["loss"] = 2.04 * np.exp(0.01 * np.random.default_rng(1).normal(size=1_000))
    columns["lr"] = np.full(1_000, 0.05)
    named = {} if optimizer is None else {"name": optimizer}
    return columns, Manifest(max_norm=0.001, optimizer=named)


def test_a_clip_far_below_every_norm_is_what_keeps_sgd_from_learning() -> None:
    columns, manifest = starved("sgd")
    (finding,) = found(clipping_every_step, columns, manifest)
    assert finding.severity is Severity.WARNING
    assert "every step 636 times shorter: a rate of 0.05 works like 7.87e-5" in finding.cause
    assert "Raise the threshold" in finding.remedy
    diagnosis = diagnose(signals_of(columns, manifest).run)
    assert diagnosis.verdict.root is not None
    assert diagnosis.findings[diagnosis.verdict.root].rule == "clipping-every-step"
    told = [diagnosis.findings[i].rule for i in diagnosis.verdict.consequences]
    assert "loss-plateau" in told


@pytest.mark.parametrize("optimizer", ["adamw", None])
def test_adam_does_not_mind_and_an_unknown_optimizer_leaves_it_open(optimizer: str | None) -> None:
    columns, manifest = starved(optimizer)
    diagnosis = diagnose(signals_of(columns, manifest).run)
    assert diagnosis.verdict.root is not None
    root = diagnosis.findings[diagnosis.verdict.root]
    assert root.rule == "loss-plateau"
    assert ("as in SGD" in root.cause) == (optimizer is None)
