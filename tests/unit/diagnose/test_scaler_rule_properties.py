"""What holds for the rules on non-finite values and loss scaling, whatever the log holds."""

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
from forensics.runlog.steps import Column, StepTable, text_column
from tests.unit.diagnose.grad_scaler import Policy, limits, run_scaler
from tests.unit.diagnose.strategies import random_table

RULES = (
    "nonfinite-loss",
    "nonfinite-gradient",
    "nonfinite-parameter",
    "norm-overflow",
    "masked-nonfinite",
    "dead-run",
    "poisoned-state",
    "nonfinite-step-applied",
    "high-skip-rate",
    "loss-scale-collapse",
    "loss-scale-oscillation",
    "loss-scale-frozen",
    "loss-scale-policy-broken",
    "loss-scale-runaway",
    "precision-mismatch",
    "gradient-underflow",
    "phantom-skip",
)
WINDOW = 1000
"""Steps of the slowest window, the skip rate's; swings are looked for in 20,000."""
Generator = np.random.Generator


def examine(table: StepTable) -> Diagnosis:
    return diagnose(Run(path=Path("run"), steps=table), select=RULES)


def spoken(findings: tuple[Finding, ...]) -> list[str]:
    return sorted(repr(finding) for finding in findings)


def scaler_table(rng: Generator, rows: int) -> StepTable:
    """A scaler at work, and then things that happen to it and to its log."""
    policy = Policy(
        start_log2=float(rng.choice([0, 4, 16, 32])),
        interval=int(rng.choice([3, 20, 200, 2000])),
        hysteresis=int(rng.choice([1, 2])),
        floor_log2=float(rng.choice([0, -200])),
    )
    noise = str(rng.choice(["gaussian", "t3", "bursty"]))
    limit = limits(rows, int(rng.integers(1 << 30)), noise)
    for _ in range(rng.integers(0, 5)):
        limit[_stretch(rng, rows)] = rng.choice([-300.0, 4.0, 12.0, 40.0])
    scale, skipped = run_scaler(limit, policy)
    loss, norm = rng.normal(2, 0.1, rows), np.exp(rng.normal(0, 0.3, rows))
    norm[skipped] = rng.choice([np.nan, np.inf, 1.0], size=int(skipped.sum()))
    for values in (loss, norm, scale):
        for _ in range(rng.integers(0, 3)):
            with np.errstate(invalid="ignore"):
                values[_stretch(rng, rows)] *= rng.choice([np.nan, np.inf, 0.0, 8.0, 2.0**-140])
    skipped[_stretch(rng, rows)] = rng.random() < 0.5
    columns = {"loss": loss, "grad_l2_pre_clip": norm, "scaler_scale": scale}
    table = {"step": Column(np.arange(rows), np.ones(rows, dtype=bool))}
    for name, values in columns.items():
        if rng.random() < 0.9:
            present = rng.random(rows) >= rng.choice([0.0, 0.0, 0.05])
            table[name] = Column(np.where(present, values, np.nan), present)
    if rng.random() < 0.8:
        table["skipped"] = Column(skipped, np.ones(rows, dtype=bool))
        reasons = rng.choice(["nonfinite_grad:a.weight", "nonfinite_loss", "other"], size=rows)
        table["skip_reason"] = text_column(np.where(skipped, reasons, "").tolist())
    return StepTable(table)


def _stretch(rng: Generator, rows: int) -> slice:
    start = int(rng.integers(0, rows + 1))
    return slice(start, start + int(rng.choice([1, 5, 40, 400])))


@st.composite
def tables(draw: st.DrawFn, least: int = 0, most: int = 3000) -> StepTable:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(least, most))
    return random_table(rng, rows) if draw(st.booleans()) else scaler_table(rng, rows)


@settings(max_examples=150, deadline=None)
@given(tables())
def test_any_log_is_judged_without_an_exception_and_within_its_steps(table: StepTable) -> None:
    diagnosis = examine(table)
    assert not [f"{r.rule}: {r.reason}" for r in diagnosis.rules if r.outcome is Outcome.FAILED]
    known = set(table.step.tolist())
    for finding in diagnosis.findings:
        assert {finding.first_step, finding.last_step} <= known, finding
        assert finding.first_step <= finding.last_step, finding
        assert finding.message == " ".join(finding.message.split())
        assert not finding.message.endswith(".")
        assert "{" not in finding.message
        assert finding.cause.endswith(".")
        assert finding.remedy.endswith(".")
        for evidence in finding.evidence:
            assert set(evidence.steps) <= known
            assert len(evidence.steps) == len(evidence.values) <= 12


@settings(max_examples=50, deadline=None)
@given(tables(most=1500), st.randoms(use_true_random=False))
def test_the_order_of_the_columns_changes_nothing(table: StepTable, random: object) -> None:
    names = [name for name in table if name != "step"]
    random.shuffle(names)  # type: ignore[attr-defined]
    other = StepTable({name: table.columns[name] for name in ("step", *names)})
    assert spoken(examine(table).findings) == spoken(examine(other).findings)


def known_of_the_scaler(table: StepTable) -> tuple[object, ...]:
    """What a log has shown of its scaler: at work or not, does it ever back off, its interval."""
    scaling = Signals(Run(path=Path("run"), steps=table)).scaling
    return scaling.active, len(scaling.falls) > 0, scaling.interval, scaling.interval_row


@settings(max_examples=100, deadline=None)
@given(tables(least=1200, most=6000), st.floats(0.2, 0.9))
def test_appended_rows_leave_an_episode_that_had_ended(table: StepTable, share: float) -> None:
    """Unless they show more of the scaler: a first overflow makes earlier ones its routine."""
    cut = int(share * len(table))
    if known_of_the_scaler(table.take(slice(0, cut))) != known_of_the_scaler(table):
        return
    before = examine(table.take(slice(0, cut))).findings
    after = {(f.rule, f.first_step) for f in examine(table).findings}
    ended = int(table.step[cut - 1]) - WINDOW
    for finding in before:
        if finding.last_step < ended:
            assert (finding.rule, finding.first_step) in after, finding


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 10, 17, 200, 201])
def test_logs_of_every_awkward_length_are_judged(rows: int) -> None:
    for seed in range(5):
        diagnosis = examine(scaler_table(np.random.default_rng(seed), rows))
        assert all(r.outcome is not Outcome.FAILED for r in diagnosis.rules)
