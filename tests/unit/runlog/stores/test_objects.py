"""One object: what is asked for, what is kept, and what happens when it changes."""

from __future__ import annotations

import io
import random

import pytest

from forensics.errors import StoreError
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
    file = RemoteFile(an_object(s3, bytes(40 * FIRST)), ahead=True)
    assert len(file.read(10)) == 10
    assert s3.sent == FIRST


def test_columns_are_read_exactly(s3: S3) -> None:
    data = random.Random(1).randbytes(10_000)
    file = RemoteFile(an_object(s3, data), ahead=False)
    file.seek(-100, io.SEEK_END)
    assert file.read(50) == data[-100:-50]
    file.seek(10)
    assert file.read(5) == data[10:15]
    assert (file.tell(), s3.sent) == (15, 55)


@pytest.mark.parametrize("size", [9 * FIRST, 11 * FIRST, 3 * FIRST])
def test_what_changes_while_it_is_read_is_refused(s3: S3, size: int) -> None:
    file = RemoteFile(an_object(s3, b"a" * 9 * FIRST), ahead=True)
    file.read(FIRST)
    s3.put("bucket", "log", b"b" * size)
    with pytest.raises(StoreError, match="changed while it was read; read it again"):
        while file.read(FIRST):
            pass


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
