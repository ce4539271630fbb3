"""Reports on thousands of damaged inputs: no traceback, no hang, not a gigabyte."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from forensics.cli import main
from tests.fire.amount import amount
from tests.fire.limits import limited
from tests.fire.mutation import RUNS, logs, mutated, mutated_run

BATCHES = 10
LOGS, OF_RUNS = amount(25, 350), amount(10, 150)
"""Mutated logs and mutated runs a batch."""


def trouble(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is wrong with how a report takes a file; empty where it told it, or refused it well."""
    with limited():
        code = main(["report", str(path), "--format", "json"])
    out, err = capsys.readouterr()
    lines = err.splitlines()
    if code not in (0, 2) or len(lines) != (code == 2):
        return f"exit {code}: {err[:300]}"
    if not all(len(line) < 1500 and line.isprintable() for line in lines):
        return f"said {err[:300]!r}"
    for report in json.loads(out, parse_constant=pytest.fail)["reports"] if code == 0 else ():
        if failed := [rule for rule in report["rules"] if rule["outcome"] == "failed"]:
            return f"rules failed: {failed}"
    return ""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_reports_on_mutated_logs(
    batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = logs()
    others = list(known.values())
    found = {}
    for seed in range(batch * LOGS, (batch + 1) * LOGS):
        chance = random.Random(seed)
        name = chance.choice(list(known))
        path = tmp_path / name
        path.write_bytes(mutated(known[name], others, chance))
        found[f"{name}, seed {seed}"] = trouble(path, capsys)
    assert {what: told for what, told in found.items() if told} == {}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_reports_on_mutated_runs(
    batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for seed in range(batch * OF_RUNS, (batch + 1) * OF_RUNS):
        chance = random.Random(seed)
        name = chance.choice(RUNS)
        found[f"{name}, seed {seed}"] = trouble(mutated_run(tmp_path, name, chance), capsys)
    assert {what: told for what, told in found.items() if told} == {}


def test_the_seeds_are_read_before_they_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in logs().items():
        (tmp_path / name).write_bytes(data)
        assert main(["report", str(tmp_path / name), "--format", "json"]) == 0, name
        (report,) = json.loads(capsys.readouterr().out)["reports"]
        assert report["run"]["steps"] >= 20, name
