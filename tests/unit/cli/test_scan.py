"""``forensics scan``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.diagnose.catalogue import Catalogue
from forensics.errors import OutputError


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A sick, a healthy and an unreadable run."""
    for name, bad in (("sick", 30), ("ok", 1000)):
        rows = [f"{i},{'nan' if i >= bad else 3 - i / 100}" for i in range(60)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "steps.csv").write_text("")
    return tmp_path


def test_a_table_of_all_runs_and_exit_0(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(runs)]) == 0
    told = capsys.readouterr()
    assert told.out.index("sick") < told.out.index("torn") < told.out.index("ok")
    assert "3 runs: 1 critical, 1 unreadable, 1 healthy" in told.out
    assert told.err == ""


def test_fail_on_decides_the_exit_code(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(runs), "--fail-on", "error"]) == 1
    assert main(["scan", str(runs / "ok"), "--fail-on", "error"]) == 0
    assert main(["scan", str(runs / "ok"), str(runs / "torn"), "--fail-on", "error"]) == 2
    capsys.readouterr()


def test_json_to_a_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = runs / "scan.json"
    assert main(["scan", str(runs), "--out", str(out), "--jobs", "1"]) == 0
    assert capsys.readouterr().out == ""
    assert [run["status"] for run in json.loads(out.read_text())["runs"]] == [
        "faulty",
        "unreadable",
        "healthy",
    ]


def test_no_run_at_all_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(tmp_path)]) == 2
    assert "holds no run and no training log" in capsys.readouterr().err


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of other programs in folders, among files that are none."""
    bad = "".join(
        f'{{"step": {i}, "loss": {"NaN" if i > 40 else 3 - i / 60}}}\n' for i in range(60)
    )
    good = bad.replace("NaN", "2.3")
    for name, text in (("a/train.jsonl", bad), ("b/c/train.jsonl", good)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "a" / "config.json").write_text('{"layers": 4}')
    (tmp_path / "notes.txt").write_text("Nothing here.\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_logs_of_other_programs_are_rows_too(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(logs), "--format", "json"]) == 0
    told = capsys.readouterr()
    rows = json.loads(told.out)["runs"]
    assert [Path(row["path"]).relative_to(logs).as_posix() for row in rows] == [
        "a/train.jsonl",
        "b/c/train.jsonl",
    ]
    assert (rows[0]["root"], rows[0]["step"]) == ("nonfinite-loss", 41)
    assert told.err == (
        "forensics: passed over 2 files that are no training logs; --verbose names them\n"
    )


def test_verbose_names_what_was_passed_over(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(logs), "--verbose"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"forensics: {logs}/") for line in told] == [
        "notes.txt: no training log",
        "a/config.json: no training log",
    ]


def test_a_run_of_our_own_and_logs_are_one_table(
    runs: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "5 runs: 2 critical, 1 unreadable, 2 healthy" in out


def test_a_place_that_does_not_exist_is_exit_2_and_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(runs / "nope")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"forensics: {runs / 'nope'}: no such file or directory\n"
    assert main(["scan", str(runs / "nope"), str(runs / "ok")]) == 2
    told = capsys.readouterr()
    assert "1 run: 1 healthy" in told.out
    assert "nope: no such file or directory" in told.err


def test_runs_of_which_none_can_be_read_are_exit_2(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(runs / "torn")]) == 2
    assert "1 run: 1 unreadable" in capsys.readouterr().out


def test_a_catalogue_gives_the_same_table_and_says_what_it_spared(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(runs)]) == 0
    plain = capsys.readouterr().out
    command = ["scan", str(runs), "--catalogue", str(runs / "scan.parquet")]
    for spared in (0, 2):  # the torn one is tried again
        assert main(command) == 0
        told = capsys.readouterr()
        assert told.out == plain
        assert f"{spared} of 3 runs as they were, not judged again" in told.err


def test_a_scheduler_without_dask_is_wrong_usage(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(runs), "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "--scheduler: is an option of --engine dask" in capsys.readouterr().err


def test_a_catalogue_that_cannot_be_written_costs_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Catalogue) -> None:
        raise OutputError("No space left on device", where=self.path)

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "steps.csv").write_text("step,loss\n0,3\n1,2\n2,1\n")
    monkeypatch.setattr(Catalogue, "save", full)
    monkeypatch.setattr("forensics.diagnose.catalogue._EVERY_S", -1.0)
    assert main(["scan", str(tmp_path), "--catalogue", str(tmp_path / "c.parquet")]) == 2
    told = capsys.readouterr()
    assert "1 run:" in told.out
    assert told.err.endswith("c.parquet: No space left on device\n")
