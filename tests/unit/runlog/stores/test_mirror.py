"""Runs in a store: the same as on a disk, with no more read than is needed."""

from __future__ import annotations

import errno
import gc
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import forensics
from forensics.errors import InputError, MissingExtraError, StoreError
from forensics.runlog.run import load_joined, load_run
from forensics.runlog.stores.mirroring import mirror_of
from tests.unit.runlog.stores.runs import ROWS, twins, write_run
from tests.unit.runlog.stores.s3_server import S3

SAMPLE = Path(__file__).parents[4] / "sample_runs" / "healthy-resumed"


def text_of(path: str) -> str:
    return forensics.render_text(load_run(path).diagnose(), verbose=True)


@pytest.mark.parametrize("part", ["", "/", "/steps.csv", "/run.json"])
def test_the_report_is_that_of_the_local_run(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    local, uri = twins("s3", "healthy-resumed")
    s3.upload(shutil.copytree(SAMPLE, local), "bucket", "healthy-resumed")
    assert text_of(uri + part).replace(uri, str(local)) == text_of(str(local) + part)


def test_no_checkpoint_is_read_and_of_snapshots_only_what_is_asked_for(
    s3: S3, tmp_path: Path
) -> None:
    local = write_run(tmp_path / "x", names=6000)
    s3.upload(local, "bucket", "x")
    run = load_run("s3://bucket/x")
    assert run.checkpoints[0].healthy
    assert len(run.steps) == ROWS
    assert s3.sent < 20_000  # log, manifest and the state's health
    assert not any(request.endswith(".pt") for request in s3.requests)
    s3.forget()
    assert run.params is not None
    assert run.params.first_nonfinite().names == ()
    assert s3.sent <= 3 * 65_536  # footers alone: they tell that no count is above 0
    run.diagnose()
    parts = sum(len(data) for (_, key), data in s3.objects.items() if "/params/" in key)
    assert s3.sent < parts + 4 * 65_536
    assert len(s3.requests) <= 9  # a look at each of three parts, its footer, the rest of it


def test_a_run_is_eight_requests_more_or_less(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    load_run("s3://bucket/x")
    kinds = [request.split("?")[0].split()[0] for request in s3.requests]
    assert len(kinds) == 9  # 3 lists; manifest, health and log: a look at each, and its contents
    assert kinds.count("HEAD") == 3


def test_a_listing_of_many_pages_is_read_whole(s3: S3, tmp_path: Path) -> None:
    s3.page = 2
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    run = load_run("s3://bucket/x")
    assert run.params is not None
    assert list(run.params.steps) == [0, 1, 2, 3, 4, 5]


def test_hostile_keys_are_names_here_or_left_out(s3: S3, tmp_path: Path) -> None:
    log = b"step,loss\n0,3\n1,2\n2,1\n"
    outside = tmp_path / "outside"
    for name in ("a b.csv", "ü.csv", "%20.csv", "new\nline.csv", "q?#&=+.csv", "*.csv", "~.csv"):
        s3.put("bucket", f"logs/{name}", log)
        run = load_run(f"s3://bucket/logs/{name}")
        assert len(run.steps) == 3, name
        assert run.named() == f"s3://bucket/logs/{name}"
    for name in ("../up.csv", "..", "/root.csv", "a//b.csv", "x" * 400, "./here.csv", "odd\0.csv"):
        s3.put("bucket", f"run/{name.replace(chr(0), '')}", log)
    s3.put("bucket", "run/steps.csv", log)
    s3.put("bucket", "run/steps.csv/inner", log)  # an object and a folder at once
    run = load_run("s3://bucket/run")
    assert len(run.steps) == 3
    assert not outside.exists()
    home = run.path.parent
    assert all(path.is_relative_to(home) for path in home.rglob("*"))
    assert not (home.parent / "up.csv").exists()


def test_a_folder_of_one_foreign_log_is_read_where_it_lies(s3: S3) -> None:
    rows = "".join(f'{{"step": {i}, "loss": {3 - i / 100}}}\n' for i in range(100))
    s3.put("bucket", "job/logs/metrics.jsonl", rows.encode())
    run = load_run("s3://bucket/job")
    assert len(run.steps) == 100
    assert run.steps.facts is not None
    assert run.steps.facts.notes[0] == "read from logs/metrics.jsonl"


def test_files_of_one_run_are_joined_from_here_and_there(s3: S3, tmp_path: Path) -> None:
    s3.put("bucket", "a.csv", b"step,loss\n0,3\n1,2\n2,1.9\n")
    later = tmp_path / "b.csv"
    later.write_text("step,loss\n3,1.5\n4,1.4\n")
    run = load_joined(["s3://bucket/a.csv", str(later)])
    assert list(run.steps.step) == [0, 1, 2, 3, 4]
    assert run.named() == "s3://bucket/a.csv"


def test_errors_name_the_place_itself(s3: S3) -> None:
    s3.put("bucket", "folder/x/steps.csv", b"step,loss\n0,1\n")
    s3.put("bucket", "noise.log", b"nothing of interest\n")
    with pytest.raises(InputError) as told:
        load_run("s3://bucket/folder")
    assert told.value.line() == (
        "s3://bucket/folder: holds no run; name one of the runs in it: x; "
        "`forensics scan s3://bucket/folder` judges all"
    )
    for path in ("s3://bucket/noise.log", "s3://bucket/none"):
        with pytest.raises(InputError) as told:
            load_run(path)
        assert told.value.line().startswith(f"{path}: ")
        assert "forensics-" not in told.value.line()


def test_who_is_not_let_in_is_told_so(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("bucket", "x", b"")
    s3.refuse = True
    with pytest.raises(StoreError, match="access is denied; the credentials in force may have"):
        load_run("s3://bucket/x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(StoreError, match="no credentials are set; set AWS_ACCESS_KEY_ID and"):
        load_run("s3://bucket/x")


def test_a_bucket_that_is_not_there_is_told_so(s3: S3) -> None:
    with pytest.raises(StoreError, match="s3://none/x: there is no such bucket"):
        load_run("s3://none/x")


def test_a_server_that_dies_while_snapshots_are_read_makes_no_half_verdict(
    s3: S3, tmp_path: Path
) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    run = load_run("s3://bucket/x")
    s3.dead = True
    with pytest.raises(StoreError, match="cannot be reached"):
        run.diagnose()


def test_health_that_goes_before_it_is_read_is_not_missed(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    health = "x/checkpoints/step-00000040.health.json"

    def rotate(store: S3, request: str) -> None:
        if request == f"HEAD bucket/{health}":
            del store.objects["bucket", health]

    s3.before = rotate
    run = load_run("s3://bucket/x")
    assert run.checkpoints[0].healthy is None
    assert not run.repairs


def test_the_folder_goes_with_the_run(s3: S3) -> None:
    s3.put("bucket", "x/steps.csv", b"step,loss\n0,1\n1,1\n2,1\n")
    mirror = mirror_of("s3://bucket/x")
    assert (mirror.path / "steps.csv").stat().st_size == 22
    place = mirror.path
    del mirror
    gc.collect()
    assert not place.parent.exists()


def test_a_run_in_memory_is_read_by_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory")
    monkeypatch.chdir(tmp_path)
    local, uri = twins("memory", "x")
    write_run(local, bad_from=40)
    files.put(str(local), uri.removeprefix("memory:/"), recursive=True)
    try:
        here, there = text_of(str(local)), text_of(uri).replace(uri, str(local))
        # What a replay would tell, and the next command: it takes a run of this machine.
        here, replays = re.subn(r"^OPEN      Which operator.*\n(?: +.*\n)+", "", here, flags=re.M)
        assert replays == 1
        assert there.partition("NEXT")[0] == here.partition("NEXT")[0]
        run = load_run(uri)
        assert run.params is not None
        assert np.allclose(run.params.matrix("grad_l2").values[0], [1, 1.5, 2])
    finally:
        files.rm("/bucket", recursive=True)


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match="pip install fsspec"):
        load_run("memory://x")


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(StoreError, match="Protocol not known: nosuch"):
        load_run("nosuch://x")


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    local = write_run(tmp_path / "a b")
    run = load_run(f"file://{local.as_posix().replace(' ', '%20')}")
    assert run.path == local
    assert not run.elsewhere


def test_an_event_file_is_fetched_for_its_own_reader(s3: S3, tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("tensorboard.compat.proto")
    del tensorboard
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(20):
        value = Summary.Value(tag="train/loss", simple_value=3 - step / 10)
        writer.add_event(Event(step=step, summary=Summary(value=[value])))
    writer.close()
    s3.upload(tmp_path, "bucket", "job")
    run = load_run("s3://bucket/job")
    assert len(run.steps) == 20
    assert run.steps["loss"][10] == pytest.approx(2.0)


def test_a_log_in_a_folder_that_may_not_be_listed_is_read_by_itself(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    here = tmp_path / "train.csv"
    here.write_text("step,loss\n0,3\n1,2\n2,1\n")
    s3.put("bucket", "train.csv", here.read_bytes())
    s3.before = lambda store, request: setattr(store, "refuse", "?" in request)
    assert load_run("s3://bucket/train.csv").steps.facts == load_run(here).steps.facts
    run = load_run("s3://bucket/x/steps.csv")
    assert run.steps.facts is not None
    assert run.steps.facts.notes == ("the run may not be listed: only this file of it was read",)
    assert (len(run.steps), run.manifest) == (ROWS, None)
    with pytest.raises(StoreError, match=r"^s3://bucket/x: access is denied"):
        load_run("s3://bucket/x")


def test_a_full_disk_here_is_not_the_stores_fault(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreError, match=r"cannot be kept .No space left on device.; make room"):
        load_run("s3://bucket/x")
