"""Whether a run has changed, told without opening a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forensics.runlog.fingerprint import fingerprint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "params").mkdir()
    (tmp_path / "steps.csv").write_text("step,loss\n0,1\n")
    (tmp_path / "params" / "part-00000000.parquet").write_bytes(b"1")
    return tmp_path


def test_it_stays_until_any_part_changes(run: Path) -> None:
    before = fingerprint(str(run))
    assert before == fingerprint(f"{run}/") == fingerprint(str(run / "steps.csv"))
    status = (run / "steps.csv").stat()
    os.utime(run / "steps.csv", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    touched = fingerprint(str(run))
    (run / "params" / "part-00000000.parquet").write_bytes(b"12")
    grown = fingerprint(str(run))
    (run / "bisect.json").write_text("{}")
    assert len({before, touched, grown, fingerprint(str(run)), ""}) == 5


def test_nothing_is_said_of_a_run_that_is_held_or_gone(run: Path) -> None:
    (run / "run.lock").write_text("{}")
    assert fingerprint(str(run)) == ""
    assert fingerprint(str(run / "nothing")) == ""


def test_a_log_is_told_by_itself(run: Path) -> None:
    log = run / "train.log"
    log.write_text("loss 1\n")
    before = fingerprint(str(log))
    (run / "other.log").write_text("loss 1\n")
    assert fingerprint(str(log)) == before
    log.write_text("loss 1\nloss 2\n")
    assert fingerprint(str(log)) != before
