"""``kill -9`` at random moments of recording, checkpointing, compacting and resuming.

A chain is one run directory whose recording is killed five times in a row, looked at after each
kill, and then resumed to its end: it must be the run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from forensics.cli import main
from forensics.record.checkpoints import load_checkpoint
from forensics.runlog.activations import ActivationStore
from forensics.runlog.checkpoint_files import checkpoints_in
from forensics.runlog.params import ParamStore
from tests.fire.amount import amount
from tests.fire.fork_server import ForkServer
from tests.fire.killer import Killer
from tests.fire.training import OPTIONS, STEPS, record

KILLS_A_CHAIN = 5
CHAINS = amount(2, 40)

Rows = dict[int, list[str]]
Snapshots = dict[tuple[str, str, str], dict[int, str]]
"""By kind, statistic and name: a value as text by step."""


@dataclass(frozen=True)
class Truth:
    """What the run that nobody disturbed has come to."""

    run: Path
    rows: Rows
    snapshots: Snapshots


@pytest.fixture(scope="module")
def truth(forks: ForkServer, fast_place: Path) -> Truth:
    run = fast_place / "whole"
    child = forks.start(record, run, said=fast_place / "said")
    assert child.wait() == 0, child.text()
    return Truth(run, rows(run), snapshot_values(run))


def rows(run: Path) -> Rows:
    """Whole rows by step, but for the clock."""
    with (run / "steps.csv").open(newline="") as file:
        lines = [line for line in file if line.endswith("\n")]
    if not lines:
        return {}
    header, *table = csv.reader(lines)
    clock = header.index("time_s")
    return {int(row[0]): row[:clock] + row[clock + 1 :] for row in table}


def graves(run: Path) -> list[Path]:
    return [p for p in (run / "superseded").glob("*") if p.name.isdecimal()]


def all_rows(run: Path) -> Rows:
    """Those of the run, and those that resumes have set aside."""
    found: Rows = {}
    for place in (*(g for g in graves(run) if (g / "steps.csv").exists()), run):
        found |= rows(place)
    return found


def snapshot_values(run: Path) -> Snapshots:
    """Every snapshot of a run, as text by step."""
    found: Snapshots = {}
    for kind, statistic in (
        *((k, s) for k in ("param", "buffer", "ema", "optimizer") for s in ("value_l2", "grad_l2")),
        ("", "std"),
    ):
        store = ParamStore(run / "params") if kind else ActivationStore(run / "activations")
        matrix = store.matrix(statistic, kind) if kind else store.matrix(statistic)
        assert store.repairs == () or all(r.kind == "torn-snapshots" for r in store.repairs)
        for column, name in enumerate(matrix.names):
            values = matrix.values[:, column].tolist()
            found[kind, statistic, name] = dict(
                zip(matrix.steps.tolist(), map(repr, values), strict=True)
            )
    return found


def check_killed(killer: Killer, truth: Truth) -> None:
    """Nothing that was flushed is lost, and what is there is that of the undisturbed run."""
    run = killer.run
    if not (run / "steps.csv").exists():
        assert not killer.told
        return
    found = all_rows(run)
    assert killer.told <= found.keys()
    assert all(truth.rows[step] == row for step, row in found.items())
    here = rows(run)
    assert sorted(here) == list(range(len(here)))
    # The snapshot of a step follows its row: the last row may be without.
    due = {step for step in sorted(here)[:-1] if step % OPTIONS["snapshot_every"] == 0}
    if due and (run / "params").is_dir():
        assert due <= set(ParamStore(run / "params").steps.tolist())
    for (kind, statistic, name), values in snapshot_values(run).items():
        expected = truth.snapshots[kind, statistic, name]
        assert all(expected[step] == value for step, value in values.items())
    for info in checkpoints_in(run / "checkpoints") if (run / "checkpoints").is_dir() else ():
        assert load_checkpoint(info.path)["step"] == info.step
        assert info.health["step"] == info.step


def check_opens(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb that reads a run reads it, with nothing that it calls a loss."""
    if not rows(run):
        return
    capsys.readouterr()
    assert main(["report", str(run), "--format", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["run"]["steps"] == len(rows(run))
    assert not [r for r in report["run"]["repairs"] if r.get("lossy")], report["run"]["repairs"]
    if ParamStore(run / "params").steps.size:
        assert main(["params", str(run)]) == 0
    assert main(["plot", str(run), "--out", str(run.with_suffix(".svg"))]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("chain", range(CHAINS))
def test_a_run_killed_again_and_again(
    chain: int,
    forks: ForkServer,
    truth: Truth,
    fast_place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    killer = Killer(forks, fast_place / f"run-{chain}", random.Random(chain))
    for _ in range(4 * KILLS_A_CHAIN):
        if killer.kill_once():
            check_killed(killer, truth)
        if len(killer.kills) == KILLS_A_CHAIN:
            break
    assert len(killer.kills) == KILLS_A_CHAIN, killer.kills
    check_opens(killer.run, capsys)
    killer.finish()
    assert rows(killer.run) == truth.rows
    assert snapshot_values(killer.run) == truth.snapshots
    last = Path("checkpoints") / f"step-{STEPS:08d}.pt"
    ours, theirs = (load_checkpoint(run / last)["model"] for run in (killer.run, truth.run))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    check_opens(killer.run, capsys)
