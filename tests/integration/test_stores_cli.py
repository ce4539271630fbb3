"""The verbs on runs in a store: what is printed, where pictures go, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.cli import main
from tests.unit.runlog.stores.runs import twins, write_run
from tests.unit.runlog.stores.s3_server import S3, reached_alone

NEXT = r"[\s\\]*forensics[\s\\]+(bisect|params)[\s\\]+\S+inf-gradient([\s\\]+--step 5)?"
SAMPLES = Path(__file__).parents[2] / "sample_runs"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with reached_alone(monkeypatch, tmp_path) as store:
        yield store


@pytest.fixture
def twin(s3: S3) -> tuple[str, str]:
    """A sample run here, and there under a URI as long as its path, so that lines break alike."""
    local, uri = twins("s3", "inf-gradient")
    s3.upload(shutil.copytree(SAMPLES / "inf-gradient", local), "bucket", "inf-gradient")
    return str(local), uri


@pytest.mark.parametrize(
    "arguments",
    [
        ("report",),
        ("report", "--verbose"),
        ("report", "--format", "json"),
        ("report", "--format", "markdown"),
        ("report", "--format", "html"),
        ("params",),
        ("params", "--format", "json"),
        ("scan", "--format", "json"),
        ("convert", "--out", "-"),
    ],
)
def test_what_is_printed_is_what_the_local_run_gives(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    local, uri = twin
    verb, *options = arguments
    assert main([verb, local, *options]) == 0
    expected = capsys.readouterr().out
    assert main([verb, uri, *options]) == 0
    said = capsys.readouterr().out.replace(uri, local)
    # A replay takes a run of this machine, so another verb comes next.
    said, expected = (re.sub(NEXT, "", text) for text in (said, expected))
    assert said == expected


def test_what_comes_next_can_be_done_where_the_run_is(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    local, uri = twin
    assert main(["report", local, uri, "--format", "json"]) == 0
    here, there = json.loads(capsys.readouterr().out)["reports"]
    assert here["verdict"]["next_command"] == f"forensics bisect {local}"
    assert there["verdict"]["next_command"] == f"forensics params {uri} --step 5"


def test_how_much_was_read_is_said_aside(
    twin: tuple[str, str], s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", twin[1]]) == 0
    said = capsys.readouterr().err
    assert said == f"forensics: read {s3.sent:,} bytes in {len(s3.requests)} requests\n"
    for arguments in (["report", twin[0]], []):
        assert main(arguments) == 0
        assert capsys.readouterr().err == ""


def test_compare_holds_one_here_against_one_there(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *twin]) == 0
    told = capsys.readouterr().out
    assert all(path in told for path in twin)


@pytest.mark.parametrize("kind", ["run", "scale", "params"])
def test_a_picture_goes_into_the_current_folder(
    s3: S3, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    name = "inf-gradient" if kind == "params" else "fp16-overflow"
    s3.upload(SAMPLES / name, "bucket", name)
    assert main(["plot" if kind == "run" else f"plot-{kind}", f"s3://bucket/{name}"]) == 0
    assert capsys.readouterr().out == f"{name}-{kind}.png\n"
    assert Path(f"{name}-{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_two_goes_beside_the_first(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    local, uri = twin
    assert main(["plot-compare", uri, local]) == 0
    assert capsys.readouterr().out == "inf-gradient-compare.png\n"
    assert main(["plot-compare", local, uri]) == 0
    assert capsys.readouterr().out == f"{local}-compare.png\n"


def test_runs_of_a_store_are_a_table_and_what_is_not_there_is_said(
    s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.upload(write_run(tmp_path / "a", bad_from=40), "bucket", "runs/a")
    s3.upload(write_run(tmp_path / "b"), "bucket", "runs/b")
    catalogue = str(tmp_path / "rows.parquet")
    arguments = ["scan", "s3://bucket/runs", "--catalogue", catalogue]
    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "s3://bucket/runs/a  critical" in first.out
    assert "0 of 2 runs as they were" in first.err
    s3.forget()
    assert main([*arguments, "s3://bucket/none"]) == 2
    again = capsys.readouterr()
    assert again.out == first.out
    assert "2 of 2 runs as they were" in again.err
    assert "forensics: s3://bucket/none: no such object or folder\n" in again.err
    assert not any(request.startswith("GET bucket/runs/") for request in s3.requests)


def test_a_run_that_can_be_read_is_told_beside_one_that_cannot(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", twin[0], "s3://none/x"]) == 2
    told = capsys.readouterr()
    assert told.out.startswith(twin[0])
    assert "s3://none/x: there is no such bucket" in told.err


def test_a_server_that_dies_midway_is_one_line(
    twin: tuple[str, str], s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(store: S3, request: str) -> None:
        store.dead = "/params/" in request

    s3.before = die
    assert main(["report", twin[1]]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    lines = [line for line in told.err.splitlines() if "requests" not in line]
    assert len(lines) == 1
    assert "cannot be reached" in lines[0]


def test_a_watch_sees_what_is_there(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", twin[1], "--fail-on", "warning", "--interval", "0.1"]) == 1
    assert "nonfinite-gradient" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["bisect", "inspect", "capsule", "record"])
def test_verbs_that_need_files_say_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "s3://bucket/x"]) == 2
    assert capsys.readouterr().err == (
        f"forensics: s3://bucket/x: {verb} works on files of this machine; "
        "name one, such as a copy of the run\n"
    )


@pytest.mark.parametrize("verb", ["report", "params", "plot", "convert", "scan"])
def test_nothing_is_written_to_a_store(
    twin: tuple[str, str], capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    out = "s3://bucket/x.png" if verb == "plot" else "s3://bucket/x.json"
    assert main([verb, twin[0], "--out", out]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"forensics: --out {out}: is written to files of this machine only; ")


def test_a_catalogue_is_a_file_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "runs", "--catalogue", "s3://bucket/x.parquet"]) == 2
    assert "--catalogue: a catalogue is a file of this machine" in capsys.readouterr().err


def test_a_uri_without_a_verb_is_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["s3://bucket/x"]) == 2
    assert "did you mean `forensics report s3://bucket/x`?" in capsys.readouterr().err


def test_a_run_of_this_machine_loads_nothing_for_stores(tmp_path: Path) -> None:
    probe = (
        "import sys; from forensics.cli import main; main(sys.argv[1:]); "
        "parts = ('fsspec', 'urllib.request', 'forensics.runlog.stores.'); "
        "print([name for name in sys.modules if name.startswith(parts)], file=sys.stderr)"
    )
    command = [sys.executable, "-c", probe, "report", str(write_run(tmp_path / "x"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "['forensics.runlog.stores.scheme']"
