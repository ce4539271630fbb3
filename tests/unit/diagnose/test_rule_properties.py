"""What holds for every rule on every log, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis, Finding, Outcome
from forensics.diagnose.signals import Signals
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.strategies import random_table, signals

SERIES_RULES = (
    "clipping-every-step",
    "clipping-frequent",
    "clipping-ineffective",
    "clip-before-unscale",
    "clip-contamination",
    "double-unscale",
    "gradient-spike",
    "gradient-explosion",
    "gradient-vanishing",
    "loss-spike",
    "loss-divergence",
    "loss-plateau",
    "loss-oscillation",
    "learning-rate-fault",
    "instability-at-warmup-end",
    "overfitting",
    "nonfinite-validation",
    "recurring-sample",
    "stuck-log",
)
WINDOW = 1300
"""Rows that the slowest detector looks at before and after an episode: 1,000 for a crowd of spikes,
200 for what becomes of one, 100 between episodes."""


def examine(table: StepTable) -> Diagnosis:
    return diagnose(Run(path=Path("run"), steps=table), select=SERIES_RULES)


def spoken(findings: tuple[Finding, ...]) -> list[str]:
    return sorted(repr(finding) for finding in findings)


@settings(max_examples=150, deadline=None)
@given(signals())
def test_any_log_is_judged_without_an_exception_and_within_its_steps(found: Signals) -> None:
    diagnosis = examine(found.table)
    failed = [f"{r.rule}: {r.reason}" for r in diagnosis.rules if r.outcome is Outcome.FAILED]
    assert not failed
    known = set(found.step.tolist())
    for finding in diagnosis.findings:
        assert {finding.first_step, finding.last_step} <= known
        assert finding.first_step <= finding.last_step
        assert finding.message == " ".join(finding.message.split())
        assert not finding.message.endswith(".")
        assert finding.cause.endswith(".")
        assert finding.remedy.endswith(".")
        for evidence in finding.evidence:
            assert set(evidence.steps) <= known
            assert len(evidence.steps) == len(evidence.values) <= 12


@settings(max_examples=60, deadline=None)
@given(signals(), st.randoms(use_true_random=False))
def test_the_order_of_the_columns_changes_nothing(found: Signals, random: object) -> None:
    names = [name for name in found.table if name != "step"]
    random.shuffle(names)  # type: ignore[attr-defined]
    other = StepTable({name: found.table.columns[name] for name in ("step", *names)})
    assert spoken(examine(found.table).findings) == spoken(examine(other).findings)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1400, 3000), more=st.integers(1, 4000))
def test_appended_rows_leave_an_episode_that_had_ended(seed: int, cut: int, more: int) -> None:
    whole = random_table(np.random.default_rng(seed), cut + more)
    before = examine(whole.take(slice(0, cut))).findings
    after = {(f.rule, f.first_step) for f in examine(whole).findings}
    ended = whole.step[cut - 1 - WINDOW]
    for finding in before:
        if finding.last_step < ended:
            assert (finding.rule, finding.first_step) in after, finding


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 9, 12, 13, 191, 192, 193])
def test_logs_of_every_awkward_length_are_judged(rows: int) -> None:
    for seed in range(5):
        diagnosis = examine(random_table(np.random.default_rng(seed), rows))
        assert all(r.outcome is not Outcome.FAILED for r in diagnosis.rules)
