"""A run directory among others: a second writer, a clock that jumps, no permission, a crowd."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.runlog.lock import LOCK_NAME
from forensics.runlog.manifest import read_manifest
from forensics.runlog.run import load_run
from tests.fire.contending import contend, record_by_a_jumping_clock
from tests.fire.fork_server import Child, ForkServer
from tests.fire.killer import Marks
from tests.fire.starving import record_beside_read_only, use_read_only
from tests.fire.test_kill import Rows, rows
from tests.fire.training import record

STEPS = 24


@pytest.fixture(scope="module")
def whole(forks: ForkServer, fast_place: Path) -> Path:
    """A run that nobody disturbed."""
    run = fast_place / "whole"
    child = forks.start(record, run, {"steps": STEPS}, said=fast_place / "whole.said")
    assert child.wait() == 0, child.text()
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


def truth(whole: Path) -> Rows:
    return rows(whole)


# -- two writers ------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{}, {"resume": True}, {"overwrite": True}])
def test_a_second_writer_is_refused_and_the_first_goes_on(
    told: dict[str, bool], forks: ForkServer, whole: Path, fast_place: Path
) -> None:
    run = fast_place / f"shared-{len(told)}-{told.get('resume')}"
    pipe = run.with_suffix(".marks")
    os.mkfifo(pipe)
    with Marks(pipe) as marks:
        first = forks.start(record, run, {"steps": STEPS}, pipe, said=run.with_suffix(".first"))
        for mark in marks.lines():
            if mark == "step 3":
                break
        second = forks.start(record, run, {**told, "steps": STEPS}, said=run.with_suffix(".second"))
        assert second.wait() == 2
        assert first.wait() == 0, first.text()
    (line,) = second.text().splitlines()
    assert "in use by process" in line or (not told and "holds a run already" in line)
    assert rows(run) == truth(whole)
    assert not (run / LOCK_NAME).exists()


def test_a_dead_writers_lock_lets_nobody_in_but_a_resume(
    forks: ForkServer, whole: Path, fast_place: Path
) -> None:
    run, pipe = fast_place / "left", fast_place / "left.marks"
    os.mkfifo(pipe)
    with Marks(pipe) as marks:
        writer = forks.start(record, run, {"steps": STEPS}, pipe, said=fast_place / "left.said")
        for mark in marks.lines():
            if mark == "step 9":
                break
        assert writer.kill() == -9
    assert (run / LOCK_NAME).exists()
    refused = forks.start(record, run, {"steps": STEPS}, said=fast_place / "left.refused")
    assert refused.wait() == 2
    resumed = forks.start(
        record, run, {"steps": STEPS, "resume": True}, said=fast_place / "left.resumed"
    )
    assert resumed.wait() == 0, resumed.text()
    assert rows(run) == truth(whole)


def test_of_many_that_take_over_one_lock_only_one_gets_it(
    forks: ForkServer, fast_place: Path
) -> None:
    run, log = fast_place / "contended", fast_place / "contended.log"
    run.mkdir()
    children: list[Child] = [
        forks.start(contend, run, log, 25, said=fast_place / f"contender-{i}") for i in range(6)
    ]
    for child in children:
        assert child.wait() == 0, child.text()
    lines = log.read_text().split("\n")[:-1]
    assert len(lines) == 2 * 25 * len(children)
    for entered, left in zip(lines[::2], lines[1::2], strict=True):
        assert (entered.split()[0], left) == ("in", f"out {entered.split()[1]}")


# -- a clock that jumps -----------------------------------------------------------------------


def test_a_clock_that_jumps_moves_no_row_and_no_duration(
    forks: ForkServer, whole: Path, fast_place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fast_place / "jumping"
    for told in ({"steps": STEPS}, {"steps": STEPS, "resume": True}):
        child = forks.start(record_by_a_jumping_clock, run, told, said=fast_place / "jumping.said")
        assert child.wait() == 0, child.text()
    assert rows(run) == truth(whole)
    assert [info.step for info in load_run(run).checkpoints] == [
        info.step for info in load_run(whole).checkpoints
    ]
    clock = load_run(run).steps["time_s"]
    assert (clock[1:] >= clock[:-1]).all()
    assert main(["report", str(run), "--format", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert 0 < report["run"]["duration_s"] < 600
    # Without the log's own clock there are only the stamps, which are worth nothing here.
    (run / "steps.csv").write_text("step,loss\n" + "".join(f"{i},2.0\n" for i in range(STEPS)))
    assert main(["report", str(run), "--format", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    stamps = [(s.started, s.ended) for s in read_manifest(run).segments]
    backwards = any(ended is not None and ended < started for started, ended in stamps)
    assert (report["run"]["duration_s"] is None) == backwards


# -- no permission ----------------------------------------------------------------------------


@pytest.mark.usefixtures("mounts")
def test_a_run_that_nobody_can_write_is_read_and_refused_in_one_line(
    forks: ForkServer, whole: Path, fast_place: Path
) -> None:
    place = fast_place / "read-only"
    child = forks.start(use_read_only, whole, place, said=fast_place / "read-only.said")
    assert child.wait() == 0, child.text()
    found = json.loads(place.with_suffix(".json").read_text())
    for name, (code, said) in found.items():
        if "it" in name.split():
            (line,) = said.splitlines()
            assert code == 2, (name, line)
            assert "Read-only file system" in line, (name, line)
            assert "choose another --out" in line, (name, line)
        else:
            assert (code, said) == (0, ""), name
    assert len(found) == 12


@pytest.mark.usefixtures("mounts")
def test_a_folder_that_cannot_be_written_costs_only_itself(
    forks: ForkServer, whole: Path, fast_place: Path
) -> None:
    run = fast_place / "partly"
    parts = ["params", "checkpoints", "activations"]
    child = forks.start(record_beside_read_only, run, parts, STEPS, said=fast_place / "partly.said")
    assert child.wait() == 0, child.text()
    for part in parts:
        assert child.text().count(f"{part} cannot be written (Read-only file system)") == 1
    kept = Path(f"{run}.kept")
    assert rows(kept) == truth(whole)
    missing = [clause.partition(":")[0] for clause in read_manifest(kept).missing]
    assert sorted(missing) == sorted(parts)


# -- crowds and halves ------------------------------------------------------------------------


def test_ten_thousand_files_in_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health = (run / "checkpoints" / "step-00000004.health.json").read_text()
    state = run / "checkpoints" / "step-00000004.pt"
    for step in range(100, 5000):
        os.link(state, run / "checkpoints" / f"step-{step:08d}.pt")
        (run / "checkpoints" / f"step-{step:08d}.health.json").write_text(health)
    part = next((run / "params").glob("*.parquet"))
    for number in range(1000, 1100):
        os.link(part, run / "params" / f"part-{number:08d}.parquet")
    (run / "ranks").mkdir()
    for rank in range(1, 101):
        (run / "ranks" / f"rank-{rank:05d}.csv").write_text("step,loss\n0,1.0\n")
    assert sum(1 for _ in run.rglob("*")) > 10_000
    assert main(["report", str(run), "--format", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["run"]["steps"] == STEPS
    assert main(["params", str(run)]) == 0


def test_a_run_copied_half_tells_what_is_there(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file of each kind gone, cut in half, or empty: no traceback, nothing invented."""
    kinds = {(path.parent.name, *path.suffixes): path for path in sorted(run.rglob("*.*"))}
    assert len(kinds) == 6
    for path in kinds.values():
        whole = path.read_bytes()
        for left in (None, whole[: len(whole) // 2], b""):
            if left is None:
                path.unlink()
            else:
                path.write_bytes(left)
            check_half(run, path, capsys)
        path.write_bytes(whole)


def check_half(run: Path, damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["report", str(run), "--format", "json"])
    said = capsys.readouterr()
    (report,) = json.loads(said.out)["reports"]
    steps = report["run"]["steps"]
    assert code == 0, said.err
    if damaged.name != "steps.csv":
        assert steps == STEPS
    else:
        assert steps < STEPS
        assert report["run"]["repairs"]
    main(["params", str(run)])
    assert "internal error" not in capsys.readouterr().err
