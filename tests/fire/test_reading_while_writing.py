"""A report on a run that is being written tells a beginning of it, and nothing that is not so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.runlog.activations import ActivationStore
from forensics.runlog.params import ParamStore
from tests.fire.fork_server import ForkServer
from tests.fire.killer import Marks
from tests.fire.test_kill import rows, snapshot_values
from tests.fire.training import record

STEPS = 90
EVERY = 14
"""Steps between two looks, so that looks fall before, within and after compactions."""


def test_a_beginning_of_the_run(
    forks: ForkServer, fast_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = fast_place / "whole", fast_place / "run"
    child = forks.start(record, whole, {"steps": STEPS}, said=fast_place / "whole.said")
    assert child.wait() == 0, child.text()
    truth, snapshots = rows(whole), snapshot_values(whole)
    os.mkfifo(fast_place / "marks")
    looks = []
    with Marks(fast_place / "marks") as marks:
        told = {"steps": STEPS}
        child = forks.start(record, run, told, fast_place / "marks", said=fast_place / "said")
        for mark in marks.lines():
            done = int(mark.removeprefix("step ")) if mark.startswith("step ") else -1
            if done > 0 and done % EVERY == 0:
                looks.append((done, look(run, capsys)))
                here = rows(run)
                assert all(truth[step] == row for step, row in here.items())
                for key, values in snapshot_values(run).items():
                    assert all(snapshots[key][step] == value for step, value in values.items())
        assert child.wait() == 0, child.text()
    assert len(looks) >= 6
    counts = [steps for _, steps in looks]
    assert counts == sorted(counts)
    assert all(done < steps <= STEPS for done, steps in looks)
    assert len(set(counts)) > 1


def look(run: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """A report, with every part whole; the number of rows that it has seen."""
    capsys.readouterr()
    assert main(["report", str(run), "--format", "json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    (report,) = json.loads(said.out)["reports"]
    assert not [repair for repair in report["run"]["repairs"] if repair.get("lossy")]
    assert (report["run"]["first_step"], report["run"]["last_step"]) == (
        0,
        report["run"]["steps"] - 1,
    )
    for store in (ParamStore(run / "params"), ActivationStore(run / "activations")):
        assert list(store.steps) == sorted(store.steps)
        assert all(repair.kind == "torn-snapshots" for repair in store.repairs)
    assert main(["params", str(run)]) == 0
    return int(report["run"]["steps"])
