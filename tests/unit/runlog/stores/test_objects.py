"""One object: what is asked for, what is kept, and what happens when it changes."""

from __future__ import annotations

import io
import random

import pytest

from forensics.errors import StoreError
from forensics.runlog.stores import objects
from forensics.runlog.stores.objects import FIRST, RemoteFile, RemoteObject
from forensics.runlog.stores.store import open_store
from forensics.runlog.stores.uri import Uri
from tests.unit.runlog.stores.s3_server import S3

URI = "s3://bucket/log"


def an_object(s3: S3, data: bytes) -> RemoteObject:
    s3.put("bucket", "log", data)
    store, key = open_store(Uri.parsed(URI))
    s3.forget()
    return RemoteObject(store, key, URI)


def test_a_small_object_is_one_look_and_one_part_however_often_it_is_read(s3: S3) -> None:
    source = an_object(s3, b"abc" * 1000)
    for _ in range(3):
        assert RemoteFile(source, ahead=True).read() == b"abc" * 1000
    assert [request.split()[0] for request in s3.requests] == ["HEAD", "GET"]


def test_a_log_is_read_on_in_parts_that_grow(s3: S3) -> None:
    data = random.Random(0).randbytes(9 * FIRST)
    file = RemoteFile(an_object(s3, data), ahead=True)
    parts = iter(lambda: file.read(100_000), b"")
    assert b"".join(parts) == data
    parts_asked = [request for request in s3.requests if request.startswith("GET")]
    assert len(parts_asked) == 3  # 1 + 4 + the rest
    assert s3.sent == len(data)


def test_its_beginning_alone_costs_its_beginning(s3: S3) -> None:
    file = RemoteFile(an_object(s3, b"\n" * (40 * FIRST)), ahead=True)
    assert len(file.read(10)) == 10
    assert s3.sent == FIRST


def test_of_many_columns_what_is_asked_for_is_read_once(s3: S3) -> None:
    data = random.Random(1).randbytes(5 << 20)
    source = an_object(s3, data)
    for _ in range(2):
        file = RemoteFile(source, ahead=False)
        file.seek(-100, io.SEEK_END)
        assert file.read(50) == data[-100:-50]
        file.seek(10)
        assert file.read(5) == data[10:15]
        assert (file.tell(), s3.sent) == (15, 55)


def test_of_few_columns_all_are_read_once_one_is(s3: S3) -> None:
    data = random.Random(1).randbytes(100_000)
    source = an_object(s3, data)
    assert source.read_columns(99_000, 100_000) == data[-1000:]  # the footer
    assert s3.sent == 1000
    assert source.read_columns(10, 20) == data[10:20]
    assert source.read_columns(5000, 6000) == data[5000:6000]
    assert s3.sent == 101_000


def test_what_is_kept_is_bounded(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_ALL_KEPT", 100)
    source = an_object(s3, bytes(5 << 20))
    for start in (10, 20, 10, 30):
        source.read_columns(start, start + 40)
    assert set(source.kept) == {10, 30}  # the one in the middle was used longest ago


@pytest.mark.parametrize("size", [9 * FIRST, 11 * FIRST, 3 * FIRST])
def test_what_changes_while_it_is_read_is_refused(s3: S3, size: int) -> None:
    file = RemoteFile(an_object(s3, b"a" * 9 * FIRST), ahead=True)
    file.read(FIRST)
    s3.put("bucket", "log", b"b" * size)
    with pytest.raises(StoreError, match="changed while it was read; read it again"):
        list(iter(lambda: file.read(FIRST), b""))


def test_what_vanishes_while_it_is_read_is_gone(s3: S3) -> None:
    file = RemoteFile(an_object(s3, b"a" * 9 * FIRST), ahead=True)
    file.read(FIRST)
    s3.objects = {("bucket", "other"): b""}
    with pytest.raises(FileNotFoundError):
        file.read(FIRST)


def test_a_server_that_dies_is_not_the_objects_end(s3: S3) -> None:
    file = RemoteFile(an_object(s3, b"a" * 9 * FIRST), ahead=True)
    file.read(FIRST)
    s3.close()
    with pytest.raises(StoreError, match="cannot be reached"):
        file.read(FIRST)


def test_less_than_was_asked_for_is_not_taken_for_zeros(s3: S3) -> None:
    """Nor for what lay there in memory before: here it may be the very same bytes."""
    for data in (b"step,loss\n" * 100, b"\n" * 1000):
        source = an_object(s3, data)
        assert RemoteFile(source, ahead=True).read() == data
        s3.halves = True
        with pytest.raises(StoreError, match=f"^{URI}: gives less of an object"):
            RemoteFile(an_object(s3, data), ahead=True).read()
        s3.halves = False
    assert RemoteFile(an_object(s3, b"1,2\n" + bytes(50)), ahead=True).read().endswith(b"\0")
