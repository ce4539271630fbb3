"""What a verdict without a finding claims, and what it leaves open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Outcome, RuleOutcome, Severity, Status
from forensics.diagnose.signals import Signals
from forensics.diagnose.verdict import weigh
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.test_verdict import finding, signals_of, verdict_on


def test_a_run_is_not_healthy_by_rules_that_were_not_asked() -> None:
    signals = signals_of()
    assert weigh(signals, (), (), left_out=53).status is Status.INSUFFICIENT_DATA
    asked = (RuleOutcome(rule="gradient-spike", outcome=Outcome.CLEAR, reason=""),)
    few = weigh(signals, (), asked, left_out=52)
    assert few.undecided[0] == "Rules asked: 1 of 53."
    assert few.summary.startswith("healthy as far as")
    assert weigh(signals, (), asked * 52, left_out=1).summary == "healthy."


def test_skips_are_the_loss_scalers_only_where_there_is_one_and_the_loss_was_finite() -> None:
    skipped, nan = np.zeros(1000), np.full(1000, 2.0)
    skipped[500], nan[500] = 1, np.nan

    def summary(precision: str, loss: np.ndarray) -> str:
        run = replace(signals_of(skipped=skipped, loss=loss).run)
        return weigh(Signals(replace(run, manifest=Manifest(precision=precision))), (), ()).summary

    fine = np.full(1000, 2.0)
    assert summary("fp16", fine) == "healthy. 1 step of 1,000 skipped: the loss scaler at work."
    assert summary("fp32", fine) == "healthy. 1 step of 1,000 skipped."
    assert summary("fp16", nan) == "healthy. 1 step of 1,000 skipped."


def test_a_short_flat_loss_is_not_called_healthy_without_a_word() -> None:
    flat = 2.3026 + 0.0004 * np.sin(np.arange(50.0))

    def gaps(loss: np.ndarray) -> list[str]:
        verdict, _ = verdict_on(signals_of(len(loss), loss=loss))
        return [gap for gap in verdict.undecided if gap.startswith("The loss is")]

    assert gaps(flat) == [
        "The loss is 2.3 at the end and was 2.3 at the start: 50 losses are too few to tell a run "
        "that learns nothing from a slow start (100 needed)."
    ]
    assert gaps(flat - np.linspace(0, 0.1, 50)) == []
    assert gaps(np.tile(flat, 2)) == []


def test_rows_that_could_not_be_written_leave_a_clean_log_undecided() -> None:
    lost = "steps.csv: 40 writes failed between steps 960 and 999 (No space left on device)"
    run = replace(signals_of(960).run, manifest=Manifest(missing=("params: 1 write failed", lost)))
    verdict, _ = verdict_on(Signals(run))
    assert verdict.status is Status.UNDECIDED
    assert verdict.summary.startswith(f"Rows were lost: {lost}. The 960 steps that were written")
    told = replace(finding("broken-log", Severity.WARNING, 960, 999), subject="steps.csv")
    verdict, _ = verdict_on(Signals(run), told)
    assert (verdict.status, verdict.root, verdict.unrelated) == (Status.UNDECIDED, None, (0,))
    nan = finding(
        "nonfinite-loss", Severity.WARNING, 959
    )  # a hole after it is not what it came from
    verdict, told_findings = verdict_on(Signals(run), told, nan)
    assert verdict.root is not None
    assert told_findings[verdict.root].rule == "nonfinite-loss"
    run = replace(run, manifest=Manifest(missing=("params: 1 write failed at step 3 (x)",)))
    assert verdict_on(Signals(run))[0].status is Status.HEALTHY
