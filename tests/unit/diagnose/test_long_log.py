"""What rules make along the way over a long log: no temporary of a whole column of numbers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from forensics.diagnose.engine import _apply
from forensics.diagnose.finding import Severity
from forensics.diagnose.rule import Rule
from forensics.diagnose.rules import RULES
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.step_logs import FP16, INF, calm, run_of

ROWS = 400_000
NUMBER = 8
"""Bytes of a float64; a mask takes one a row."""


@pytest.fixture(scope="module")
def long_run() -> Signals:
    """A healthy fp16 run with the overflow that each growth of its scale brings."""
    row = np.arange(ROWS)
    skipped = row % 2001 == 2000
    columns = calm(ROWS, skipped=skipped, scaler_scale=np.where(skipped, 2.0**17, 2.0**16))
    columns["loss"] += 6.0 * (row + 10.0) ** -0.3
    columns["grad_l2_pre_clip"][skipped] = INF
    signals = run_of(columns, FP16)
    for rule in RULES:  # what they share is made once and kept
        _, found = _apply(rule, signals, rule.defaults)
        assert all(finding.severity is Severity.INFO for finding in found)
    return signals


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_makes_no_column_of_numbers_along_the_way(rule: Rule, long_run: Signals) -> None:
    tracemalloc.start()
    try:
        _apply(rule, long_run, rule.defaults)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < NUMBER * ROWS, "look at it in blocks: clearing fresh pages costs more than sums"
