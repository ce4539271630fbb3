"""Many runs in a store: which there are, by one listing, and the table of the local ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forensics.diagnose.catalogue import Catalogue
from forensics.diagnose.survey import Choice, Search, SurveyRow, find_runs
from forensics.diagnose.survey_pool import survey
from forensics.runlog.stores.searching import search_mirror_of
from tests.unit.runlog.stores.runs import write_run
from tests.unit.runlog.stores.s3_server import S3

PRINTED = "".join(f"step {i} | loss {3 - i / 100:.4f} | lr 1.0e-03\n" for i in range(80))


def write_runs(folder: Path) -> Path:
    """Two recordings, one of them with others in it; a printed log, a rotated one, and noise."""
    write_run(folder / "group" / "a", bad_from=40)
    write_run(folder / "group" / "a" / "superseded" / "1")
    write_run(folder / "b c")
    (folder / "printed").mkdir()
    (folder / "printed" / "train.log").write_text(PRINTED)
    (folder / "notes.log").write_text("a shopping list\n" * 10)
    (folder / "weights.pt").write_bytes(bytes(1_000_000))
    return folder


def moved(row: SurveyRow, uri: str, local: Path) -> SurveyRow:
    return replace(row, path=row.path.replace(uri, str(local)))


def test_the_runs_and_their_rows_are_those_of_the_local_folder(s3: S3, tmp_path: Path) -> None:
    local, uri = write_runs(tmp_path / "runs"), "s3://bucket/runs"
    s3.upload(local, "bucket", "runs")
    here, there = Search(), Search()
    runs = list(find_runs([str(local)], here))
    found = list(find_runs([uri], there))
    assert [path.replace(uri, str(local)) for path in found] == runs
    assert len(runs) == 3
    assert there.passed == [f"{uri}/notes.log"]
    rows = [moved(row, uri, local) for row in survey(found, Choice())]
    assert rows == survey(runs, Choice())
    assert [row.status for row in rows] == ["faulty", "healthy", "healthy"]


def test_a_search_is_one_listing_and_the_beginnings_of_logs(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_runs(tmp_path / "runs"), "bucket", "runs")
    list(find_runs(["s3://bucket/runs"]))
    lists = [request for request in s3.requests if "list-type" in request]
    assert len(lists) == 1
    logs = {request.split(" ", 1)[1] for request in s3.requests} - {lists[0].split(" ", 1)[1]}
    assert logs == {"bucket/runs/notes.log", "bucket/runs/printed/train.log"}
    assert s3.sent < 10_000


def test_processes_judge_what_they_find_by_themselves(s3: S3, tmp_path: Path) -> None:
    for name in "abcd":
        s3.upload(write_run(tmp_path / name, bad_from=40), "bucket", f"runs/{name}")
    rows = survey(list(find_runs(["s3://bucket/runs"])), Choice(), jobs=2)
    assert [(row.path, row.root) for row in rows] == [
        (f"s3://bucket/runs/{name}", "nonfinite-loss") for name in "abcd"
    ]


def test_a_run_that_goes_between_search_and_judging_is_a_row(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_run(tmp_path / "a"), "bucket", "runs/a")
    paths = list(find_runs(["s3://bucket/runs"]))
    s3.objects = {("bucket", "other"): b""}
    rows = survey(paths, Choice())
    assert [(row.status, row.summary) for row in rows] == [
        ("unreadable", "no such object or folder")
    ]


def test_the_catalogue_knows_a_run_until_its_objects_change(s3: S3, tmp_path: Path) -> None:
    for name in "ab":
        s3.upload(write_run(tmp_path / name), "bucket", f"runs/{name}")
    file = tmp_path / "rows.parquet"

    def known() -> list[str]:
        search = Search()
        paths = list(find_runs(["s3://bucket/runs"], search))
        catalogue = Catalogue(file, Choice())
        rows = catalogue.known(paths, search.marks)
        left = [path for path in paths if path not in {row.path for row in rows}]
        for row in survey(left, Choice()):
            catalogue.add(row)
        catalogue.save()
        return [row.path for row in rows]

    assert known() == []
    assert known() == ["s3://bucket/runs/a", "s3://bucket/runs/b"]
    s3.put("bucket", "runs/a/steps.csv", b"step,loss\n0,3\n1,2\n2,1\n")
    assert known() == ["s3://bucket/runs/b"]
    s3.put("bucket", "runs/b/run.lock", b"{}")  # its end, no object would tell
    assert known() == ["s3://bucket/runs/a"]


def test_fingerprints_of_folders_and_logs_are_their_own(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_runs(tmp_path / "runs"), "bucket", "runs")
    mirror = search_mirror_of("s3://bucket/runs")
    names = (".", "group/a", "b c", "printed", "printed/train.log", "notes.log")
    marks = {name: mirror.fingerprint(mirror.home / name) for name in names}
    assert len(set(marks.values())) == len(names) - 1
    assert marks["printed"] == marks["printed/train.log"]  # the same one object
    again = search_mirror_of("s3://bucket/runs")
    assert {name: again.fingerprint(again.home / name) for name in names} == marks


def test_one_log_is_a_run(s3: S3) -> None:
    s3.put("bucket", "x/train.log", PRINTED.encode())
    assert list(find_runs(["s3://bucket/x/train.log"])) == ["s3://bucket/x/train.log"]


@pytest.mark.parametrize("uri", ["s3://bucket/none", "s3://none/x"])
def test_a_place_that_is_not_there_hides_no_other(s3: S3, tmp_path: Path, uri: str) -> None:
    s3.put("bucket", "x/steps.csv", b"step,loss\n0,3\n")
    local = str(write_run(tmp_path / "a"))
    search = Search()
    found = list(find_runs([uri, "s3://bucket/x", local, "s3://bucket/x/"], search))
    assert found == ["s3://bucket/x", local]
    assert [error.where for error in search.failed] == [uri]


def test_a_run_whose_key_is_no_path_of_files_has_its_row(s3: S3) -> None:
    log = b"step,loss\n0,3\n1,2\n2,1\n"
    for key in ("x", "x/steps.csv", f"{'l' * 300}/steps.csv", "a//b/steps.csv", "a//notes.txt"):
        s3.put("bucket", f"runs/{key}", log)
    search = Search()
    found = list(find_runs(["s3://bucket/runs"], search))
    names = ["x", "l" * 300, "a//b"]
    assert sorted(found) == sorted(f"s3://bucket/runs/{name}" for name in names)
    assert search.passed == ["s3://bucket/runs/a//notes.txt"]
    assert all(search.marks[uri] for uri in found)
    rows = {row.path.rpartition("/runs/")[2]: row for row in survey(found, Choice())}
    assert rows["x"].steps == rows["l" * 300].steps == 3
    assert "Empty path component" in rows["a//b"].summary
