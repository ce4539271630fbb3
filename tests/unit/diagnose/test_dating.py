"""Findings on logs whose rows cover many steps, and the skips that such a row counts."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.dating import dated, in_epochs
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Evidence, Finding, Severity, Status
from forensics.diagnose.rules.high_skip_rate import high_skip_rate
from tests.unit.diagnose.step_logs import calm, run_of

ROWS = 40


def finding(message: str, first: int, rule: str = "nonfinite-loss", **more: object) -> Finding:
    values = {"severity": Severity.ERROR, "last_step": first, **more}
    return Finding(rule=rule, message=message, first_step=first, **values)  # type: ignore[arg-type]


def sparse(**columns: object):  # type: ignore[no-untyped-def]
    step = 25 * np.arange(1, ROWS + 1)
    return run_of(calm(ROWS, step=step, covered_steps=np.full(ROWS, 25), **columns))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("loss is NaN at step 1,000", "loss is NaN between steps 976 and 1,000"),
        ("loss is NaN from step 1,000 on", "loss is NaN from a step between 976 and 1,000 on"),
        ("it rises since step 1,000, by 2", "it rises since a step between 976 and 1,000, by 2"),
        ("9 skipped in steps 1,000 to 2,000", "9 skipped in steps 976 to 2,000"),
        ("the loss rose at 1,000", "the loss rose at 1,000"),
        ("at step 1,000,000 of it", "at step 1,000,000 of it"),
    ],
)
def test_a_row_is_told_as_the_steps_it_covers(message: str, told: str) -> None:
    found = dated(sparse(), finding(message, 1000))
    assert (found.message, found.earliest_step, found.first_step) == (told, 976, 1000)


def test_a_validation_and_a_log_of_every_step_are_exact() -> None:
    overfit = finding("best at step 50", 50, "overfitting")
    assert dated(sparse(), overfit) == overfit
    exact = finding("loss is NaN at step 5", 5)
    assert dated(run_of(calm(20)), exact) == exact


def test_a_finding_that_snapshots_date_keeps_its_range() -> None:
    known = finding("bad at step 50", 50, earliest_step=31)
    assert dated(sparse(), known) == known


def test_evidence_from_a_column_that_is_not_there_is_left_out() -> None:
    evidence = Evidence(signal="grad_l2_pre_clip", steps=(5,), values=(float("nan"),))
    signals = run_of(calm(20, grad_l2_pre_clip=None, grad_l2_post_clip=None))
    assert dated(signals, finding("x", 5, evidence=(evidence,))).evidence == ()
    assert dated(run_of(calm(20)), finding("x", 5, evidence=(evidence,))).evidence == (evidence,)


def test_steps_that_are_numbered_or_counted_become_epochs() -> None:
    said = "Loss is NaN from step 30 on; all 10 steps until the end, 1 step later, steps 3 to 5"
    assert in_epochs(said) == (
        "Loss is NaN from epoch 30 on; all 10 epochs until the end, 1 epoch later, epochs 3 to 5"
    )
    assert in_epochs("the optimizer's step before it") == "the optimizer's step before it"


def skipping(counts: np.ndarray, **columns: object):  # type: ignore[no-untyped-def]
    return sparse(skipped_steps=counts, skipped=None, scaler_scale=None, **columns)


def test_a_row_whose_steps_were_all_skipped_is_a_skipped_row() -> None:
    counts = np.zeros(ROWS, dtype=int)
    counts[[3, 5]] = (25, 24)
    signals = skipping(counts)
    assert np.flatnonzero(signals.skipped).tolist() == [3]
    assert signals.lost_steps.sum() == 49


def test_skips_within_rows_are_counted_by_steps() -> None:
    counts = np.zeros(ROWS, dtype=int)
    counts[20:] = 10  # 40 % of the steps, 200 of the last 500
    found = list(high_skip_rate.find(skipping(counts), high_skip_rate.defaults))
    assert len(found) == 1
    assert found[0].severity == Severity.ERROR
    assert "200 steps skipped" in found[0].message


def test_a_few_skips_in_a_sparse_log_are_routine() -> None:
    counts = np.zeros(ROWS, dtype=int)
    counts[[0, 4, 14]] = (2, 1, 1)
    assert list(high_skip_rate.find(skipping(counts), high_skip_rate.defaults)) == []


def test_a_log_of_skips_alone_is_judged_by_them() -> None:
    counts = np.zeros(ROWS, dtype=int)
    counts[0] = 2
    signals = skipping(counts, loss=None, grad_l2_pre_clip=None, grad_l2_post_clip=None)
    verdict = diagnose(signals.run).verdict
    assert verdict.status is Status.INSUFFICIENT_DATA
    assert "only the loss scaler could be judged" in verdict.summary
    assert "2 steps of 1,000 skipped" in verdict.summary
