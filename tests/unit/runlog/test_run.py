"""Loading a run: with any part missing, and any part broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.errors import ExitCode, InputError
from forensics.runlog.lock import RunLock
from forensics.runlog.manifest import Ended, Manifest, write_manifest
from forensics.runlog.params import ParamWriter
from forensics.runlog.run import load_run
from tests.unit.runlog.logs import log, row
from tests.unit.runlog.test_lock import dead_pid, leave_lock
from tests.unit.runlog.test_superseding import make, supersede


def kinds(path: Path) -> list[str]:
    return [repair.kind for repair in load_run(path).repairs]


def test_a_whole_run_is_loaded_by_its_directory_its_log_or_its_manifest(tmp_path: Path) -> None:
    run = make(tmp_path / "run", torn=False)
    (run / "bisect.json").write_text('{"status": "located"}')
    for path in (run, run / "steps.csv", run / "run.json"):
        loaded = load_run(path)
        assert loaded.path == run
        assert len(loaded.steps) == 10
        assert loaded.manifest is not None
        assert loaded.params is not None
        assert loaded.params.matrix("grad_l2").values.shape == (10, 2)
        assert loaded.activations is not None
        assert [len(rank) for rank in loaded.ranks] == [10]
        assert [info.step for info in loaded.checkpoints] == [0, 5]
        assert loaded.bisection == {"status": "located"}
        assert loaded.repairs == ()


def test_a_log_alone_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "my log.csv"
    path.write_text("step,loss\n0,1.0\n")
    run = load_run(str(path))
    assert run.path == path
    assert (run.manifest, run.params, run.ranks, run.checkpoints) == (None, None, (), ())
    (tmp_path / "steps.csv").write_text(log(row(0)))
    assert load_run(tmp_path / "steps.csv").path == tmp_path / "steps.csv"
    assert load_run(tmp_path).path == tmp_path


def test_another_csv_beside_a_run_is_read_alone(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "mine.csv").write_text("step,loss\n0,1.0\n")
    assert load_run(run / "mine.csv").manifest is None


def test_what_resumes_and_earlier_runs_left_is_there(tmp_path: Path) -> None:
    run = make(tmp_path / "run", torn=False)
    supersede(run, 8)
    with (run / "steps.csv").open("a") as file:
        file.writelines(f"{row(step)}\n" for step in range(4))
    loaded = load_run(run)
    assert loaded.steps.step.tolist() == [0, 1, 2, 3]
    assert [table.step.tolist() for table in loaded.superseded] == [[8, 9], list(range(8))]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("run.json", "broken-manifest"),
        ("bisect.json", "broken-part"),
        ("ranks/rank-00001.csv", "broken-part"),
        ("params/part-00000000.parquet", "broken-snapshots"),
        ("checkpoints/step-00000000.health.json", None),
    ],
)
def test_a_broken_part_hides_no_other(tmp_path: Path, part: str, kind: str | None) -> None:
    run = make(tmp_path / "run", torn=False)
    (run / part).write_bytes(b"\0broken")
    loaded = load_run(run)
    assert len(loaded.steps) == 10
    assert [info.step for info in loaded.checkpoints] == [0, 5]
    assert loaded.params is not None
    assert loaded.params.matrix("grad_l2").steps.tolist()[-1] == 9
    assert [repair.kind for repair in loaded.repairs] == ([kind] if kind else [])
    if kind:
        assert Path(part).name in loaded.repairs[0].message
    else:
        assert loaded.checkpoints[0].healthy is None


@pytest.mark.parametrize("part", ["run.json", "bisect.json"])
def test_a_pipe_in_the_place_of_a_part_is_not_waited_for(tmp_path: Path, part: str) -> None:
    run = make(tmp_path / "run", torn=False)
    (run / part).unlink(missing_ok=True)
    os.mkfifo(run / part)
    loaded = load_run(run)
    assert len(loaded.steps) == 10
    assert [part in repair.message for repair in loaded.repairs] == [True]


def test_a_missing_log_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "steps.csv").unlink()
    loaded = load_run(run)
    assert len(loaded.steps) == 0
    assert loaded.manifest is not None
    (repair,) = loaded.repairs
    assert (repair.kind, repair.lossy) == ("missing-step-log", True)


def test_an_unreadable_log_is_said_where_there_is_other_evidence(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "steps.csv").write_bytes(bytes(range(256)) * 9)
    loaded = load_run(run)
    assert loaded.params is not None
    assert len(loaded.checkpoints) == 2
    assert [(repair.kind, repair.lossy) for repair in loaded.repairs] == [("broken-step-log", True)]
    for part in ("params", "activations", "checkpoints"):
        shutil.rmtree(run / part)
    with pytest.raises(InputError, match="binary"):
        load_run(run)


def test_a_log_without_rows_tells_how_the_run_ended(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(log())
    write_manifest(tmp_path, Manifest(ended=Ended("exception", 0, "KeyError: 'x'")))
    with pytest.raises(InputError, match=r"no rows.*KeyError: 'x'"):
        load_run(tmp_path)


def test_a_newer_format_is_refused_whole(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "run.json").write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="upgrade") as caught:
        load_run(run)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("make_it", "said"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "holds no run; a run directory has"),
        (lambda path: make(path / "inner" / "a").parent, r"holds no run"),
        (
            lambda path: (path.mkdir(), (path / "m.csv").write_text("x")),
            "name the log itself: m.csv",
        ),
        (lambda path: make(path / "a"), "name one of the runs in it: a"),
    ],
)
def test_what_is_no_run_gets_one_clear_line(tmp_path: Path, make_it: object, said: str) -> None:
    path = tmp_path / "it"
    make_it(path)  # type: ignore[operator]
    with pytest.raises(InputError, match=said) as caught:
        load_run(path)
    assert str(path) in caught.value.line()


def test_a_torn_line_of_a_run_that_goes_on_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(log(row(0)) + "1,0.0")
    write_manifest(tmp_path, Manifest())
    with RunLock(tmp_path):
        (repair,) = load_run(tmp_path).repairs
        assert (repair.kind, repair.lossy) == ("torn-last-line", False)
        assert "may still be being written" in repair.message
    leave_lock(tmp_path, pid=dead_pid())
    assert load_run(tmp_path).repairs[0].lossy
    (tmp_path / "run.lock").unlink()
    write_manifest(tmp_path, Manifest(ended=Ended("finished")))
    assert load_run(tmp_path).repairs[0].lossy


def test_a_torn_journal_of_a_run_that_goes_on_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(log(row(0)))
    write_manifest(tmp_path, Manifest())
    writer = ParamWriter(tmp_path / "params")
    writer.append(0, ["a"], "param", {"grad_l2": [1.0]})
    assert writer._journal is not None
    writer._journal.abandon()
    (journal,) = (tmp_path / "params").iterdir()
    journal.write_bytes(journal.read_bytes()[:-8])
    for ended, lossy in ((None, False), (Ended("finished"), True)):
        write_manifest(tmp_path, Manifest(ended=ended))
        run = load_run(tmp_path)
        assert run.unfinished is not lossy
        assert run.params is not None
        assert len(run.params.steps) == 0
        assert [(repair.kind, repair.lossy) for repair in run.repairs] == [
            ("torn-snapshots", lossy)
        ]


def test_ranks_keep_their_places(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run / "ranks" / "rank-00003.csv").write_text("step,loss\n0,1.0\n")
    (run / "ranks" / "rank-00000.csv").write_text("step,loss\n0,1.0\n")
    (run / "ranks" / "notes.txt").write_text("x")
    assert [len(rank) for rank in load_run(run).ranks] == [10, 0, 1]


def test_checkpoints_tell_their_health_without_torch(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    folder = run / "checkpoints"
    (folder / "step-00000005.health.json").write_text(
        json.dumps({"healthy": False, "bad": ["a.weight"]})
    )
    (folder / "step-00000007.nonfinite.pt").write_bytes(b"")
    (folder / "step-00000009.pt").write_bytes(b"")
    (folder / "step-00000009.health.json").write_text("[" * 9999)
    (folder / ".step-00000011.pt.77.tmp").write_bytes(b"")
    (folder / "model.pt").write_bytes(b"")
    found = [(info.step, info.healthy) for info in load_run(run).checkpoints]
    assert found == [(0, True), (5, False), (7, False), (9, None)]
    assert load_run(run).checkpoints[1].health["bad"] == ["a.weight"]


@pytest.mark.parametrize("part", ["params", "checkpoints", "ranks", "superseded"])
def test_a_folder_without_permission_hides_no_other(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path / "run", torn=False)
    supersede(run, 9)
    listed = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == part:
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    loaded = load_run(run)
    assert len(loaded.steps) == 9
    assert loaded.params is not None
    assert len(loaded.params.steps) == (0 if part == "params" else 9)
    (repair,) = loaded.repairs
    assert "Permission denied" in repair.message
    assert repair.lossy


PROBE = """
import sys
{before}
from forensics.runlog.run import load_run
run = load_run(sys.argv[1])
assert len(run.steps) == 1, run
run.params.matrix("grad_l2"), run.steps.take(slice(1)), run.repairs
print(sorted({{"torch", "pandas", "matplotlib", "rich"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("before", "loaded"), [("", "[]"), ("import pandas", "['pandas']")], ids=["reading", "probe"]
)
def test_reading_a_run_imports_neither_torch_nor_pandas(
    tmp_path: Path, before: str, loaded: str
) -> None:
    (tmp_path / "steps.csv").write_text(log(row(0, "tensor(nan)")) + "torn")
    with ParamWriter(tmp_path / "params") as writer:
        writer.append(0, ["a"], "param", {"grad_l2": [1.0]})
    command = [sys.executable, "-c", PROBE.format(before=before), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == loaded
