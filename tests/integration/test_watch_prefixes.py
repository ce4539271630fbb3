"""A healthy run that is watched from its first row on is stopped at no length."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.errors import InputError
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.line_logs import megatron

RUNS = Path(__file__).parents[2] / "sample_runs"
HEALTHY = sorted(path.name for path in RUNS.glob("healthy-*"))


def alarms(log: Path) -> list[str]:
    """What would end a watch by default; a log of a few rows may not be one yet."""
    try:
        run = load_run(log)
    except InputError:
        return []
    found = diagnose(run).findings
    return [f"{f.rule}: {f.message}" for f in found if f.severity >= Severity.ERROR]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_beginning_of_a_healthy_run_is_an_alarm(name: str, tmp_path: Path) -> None:
    lines = (RUNS / name / "steps.csv").read_text().splitlines(keepends=True)
    log = tmp_path / "log.csv"
    for count in [*range(1, 40, 3), *range(40, len(lines) + 1, 20)]:
        log.write_text("".join(lines[:count]))
        assert alarms(log) == []


def test_a_loss_scale_that_is_found_from_2_to_the_32_is_no_alarm(tmp_path: Path) -> None:
    """Every step is skipped at first: that is how a loss scaler begins."""
    log = tmp_path / "train.log"
    scales = [2.0**32 / 2**k for k in range(1, 18)]
    rows = [megatron(i, loss="", scale=f"{s}", skipped=1) for i, s in enumerate(scales, 1)]
    rows += [megatron(i, loss=f"{3 - i / 300:.6E}", scale=f"{scales[-1]}") for i in range(18, 120)]
    for count in (1, 3, 8, 12, 17, 18, 20, 30, 60, len(rows)):
        log.write_text("".join(rows[:count]))
        assert alarms(log) == [], count
