"""Resuming moves aside what will be done again; a kill at any moment destroys nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forensics.runlog.activations import ActivationStore, ActivationWriter
from forensics.runlog.files import supersede
from forensics.runlog.manifest import Ended, Manifest, read_manifest, write_manifest
from forensics.runlog.params import ParamStore, ParamWriter
from forensics.runlog.run import load_run
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps_csv import StepWriter, read_steps
from tests.unit.runlog.logs import HEADER

STEPS = 10
SYSTEM_CALLS = ("rename", "replace", "unlink", "fsync", "open", "mkdir", "link", "rmdir")


class KilledError(BaseException):
    """What stands in for a kill."""


def make(run: Path, *, torn: bool = True) -> Path:
    """A run of ten steps with everything a run can have."""
    run.mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "ranks").mkdir()
    with (
        StepWriter(run / "steps.csv", CANONICAL_NAMES) as log,
        StepWriter(run / "ranks" / "rank-00001.csv", ("step", "loss")) as rank,
        ParamWriter(run / "params", group=4) as params,
        ActivationWriter(run / "activations", group=100) as activations,
    ):
        for step in range(STEPS):
            log.write({"step": step, "loss": step / 3})
            rank.write({"step": step, "loss": step / 7})
            params.append(step, ["a", "b"], "param", {"grad_l2": [step, 2 * step]})
            activations.append(step, ["m"], {"mean": [step]})
            if step % 5 == 0:
                (run / f"checkpoints/step-{step:08d}.pt").write_bytes(b"state")
                (run / f"checkpoints/step-{step:08d}.health.json").write_text('{"healthy": true}')
    if torn:
        with (run / "steps.csv").open("a") as file:
            file.write("10,3.")
    write_manifest(run, Manifest(ended=Ended("exception", 9, "boom")))
    (run / "bisect.json").write_text("{}")
    return run


@contextmanager
def killed_at(call: int) -> Iterator[list[int]]:
    """Let the n-th system call that changes the disk be the last one."""
    count = [0]
    real = {name: getattr(os, name) for name in SYSTEM_CALLS}

    def watched(name: str) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            count[0] += 1
            if count[0] >= call:
                raise KilledError
            result: object = real[name](*args, **kwargs)
            return result

        return run

    with pytest.MonkeyPatch.context() as patch:
        for name in SYSTEM_CALLS:
            patch.setattr(os, name, watched(name))
        yield count


def test_rows_snapshots_and_checkpoints_move_aside(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    grave = supersede(run, 3)
    assert grave == run / "superseded" / "1"
    assert read_steps(run / "steps.csv").step.tolist() == [0, 1, 2]
    assert read_steps(run / "ranks" / "rank-00001.csv").step.tolist() == [0, 1, 2]
    assert ParamStore(run / "params").steps.tolist() == [0, 1, 2]
    assert ActivationStore(run / "activations").steps.tolist() == [0, 1, 2]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        "step-00000000.health.json",
        "step-00000000.pt",
    ]
    assert (grave / "steps.csv").read_text().endswith("\n10,3."), "the torn row is evidence too"
    assert read_steps(grave / "steps.csv").step.tolist() == list(range(3, 10))
    assert ParamStore(grave / "params").matrix("grad_l2").values[:, 1].tolist() == [
        2.0 * step for step in range(3, 10)
    ]
    assert ActivationStore(grave / "activations").steps.tolist() == list(range(3, 10))
    assert read_manifest(grave).ended == Ended("exception", 9, "boom")
    assert (grave / "checkpoints" / "step-00000005.pt").read_bytes() == b"state"
    assert (grave / "bisect.json").exists()
    assert not (run / "bisect.json").exists()
    assert (run / "run.json").exists()


def test_the_checkpoint_resumed_from_stays(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    supersede(run, 5)
    assert (run / "checkpoints" / "step-00000005.pt").exists()


def test_nothing_from_there_on_moves_nothing(tmp_path: Path) -> None:
    run = make(tmp_path / "run", torn=False)
    before = sorted(run.rglob("*"))
    assert supersede(run, STEPS) is None
    assert sorted(run.rglob("*")) == before


def test_a_torn_row_alone_is_moved(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    grave = supersede(run, STEPS)
    assert grave is not None
    assert (grave / "steps.csv").read_text() == f"{HEADER}\n10,3."
    assert (run / "steps.csv").read_text().count("\n") == STEPS + 1


def test_a_second_resume_gets_a_number_of_its_own(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    assert supersede(run, 8) == run / "superseded" / "1"
    assert supersede(run, 8) is None
    assert supersede(run, 2) == run / "superseded" / "2"
    tables = load_run(run).superseded
    assert [table.step.tolist() for table in tables] == [[8, 9], [2, 3, 4, 5, 6, 7]]


def test_a_journal_that_was_not_compacted_is_split_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer = ParamWriter(run / "params")
    for step in range(6):
        writer.append(step, ["a"], "param", {"grad_l2": [step]})
    assert writer._journal is not None
    writer._journal.abandon()
    grave = supersede(run, 4)
    assert grave is not None
    assert ParamStore(run / "params").steps.tolist() == [0, 1, 2, 3]
    assert ParamStore(grave / "params").steps.tolist() == [4, 5]


def test_a_torn_journal_is_kept_as_it_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    writer = ParamWriter(run / "params")
    for step in range(6):
        writer.append(step, ["a"], "param", {"grad_l2": [step]})
    assert writer._journal is not None
    writer._journal.abandon()
    (path,) = (run / "params").iterdir()
    torn = path.read_bytes()[:-30]
    path.write_bytes(torn)
    grave = supersede(run, 2)
    assert grave is not None
    assert (grave / "params" / path.name).read_bytes() == torn
    assert ParamStore(run / "params").steps.tolist() == [0, 1]
    assert ParamStore(run / "params").repairs == ()


def test_after_a_kill_at_any_moment_it_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kill, unlike a power cut, loses nothing that was not synced, and syncing takes its time.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    template = make(tmp_path / "template")
    shutil.rmtree(template / "activations")  # the same machinery as params
    for call in range(1, 1000):
        run = shutil.copytree(template, tmp_path / f"run-{call}")
        again = (3, 1)[call % 2]  # the next resume may be from an earlier step
        with killed_at(call) as calls, contextlib.suppress(KilledError):
            supersede(run, 3)
        supersede(run, again)
        kept = list(range(again))
        assert read_steps(run / "steps.csv").step.tolist() == kept
        assert ParamStore(run / "params").steps.tolist() == kept
        everything_is_somewhere(run)
        assert not list((run / "superseded").rglob("trim-from"))
        assert not list(run.rglob("*.tmp"))
        if calls[0] < call:
            break
    assert call > 30, "the kills did not reach into the work"


def everything_is_somewhere(run: Path) -> None:
    """No step is lost, neither its row nor its snapshot nor its checkpoint."""
    homes = [run, *(run / "superseded").glob("[0-9]*")]
    rows: set[int] = set()
    snapshots: set[int] = set()
    for home in homes:
        if (home / "steps.csv").exists():
            rows |= set(read_steps(home / "steps.csv").step.tolist())
        snapshots |= set(ParamStore(home / "params").steps.tolist())
    assert rows == snapshots == set(range(STEPS))
    states = {path.name for home in homes for path in home.glob("checkpoints/*.pt")}
    assert states == {"step-00000000.pt", "step-00000005.pt"}
