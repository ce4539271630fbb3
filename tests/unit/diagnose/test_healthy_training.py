"""No alarm on health: every kind of sound training, many seeds and lengths, all rules on series."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Outcome, Severity
from forensics.runlog.run import Run
from tests.unit.diagnose.healthy import KINDS, healthy_run
from tests.unit.diagnose.test_rule_properties import SERIES_RULES

LENGTHS = [(5, 2), (20, 4), (60, 4), (300, 4), (2_000, 3), (20_000, 1)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_healthy_training_raises_no_alarm(kind: str) -> None:
    alarms = []
    for rows, seeds in LENGTHS:
        for seed in range(seeds):
            steps = healthy_run(kind, seed, rows).table
            told = diagnose(Run(path=Path("run"), steps=steps), select=SERIES_RULES)
            assert all(r.outcome is not Outcome.FAILED for r in told.rules)
            alarms += [
                f"{rows} rows, seed {seed}: {f.rule} at {f.first_step}: {f.message}"
                for f in told.findings
                if f.severity > Severity.INFO
            ]
    assert not alarms
