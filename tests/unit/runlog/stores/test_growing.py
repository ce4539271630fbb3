"""A log in a store that is replaced by a longer one again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.errors import InputError, StoreError
from forensics.runlog.reading import Reading
from forensics.runlog.stores.growing import GrowingPlace
from tests.unit.runlog.stores.runs import write_run
from tests.unit.runlog.stores.s3_server import S3


def log_of(rows: int) -> bytes:
    return ("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(rows))).encode()


def test_a_log_that_grows_changes_and_one_that_is_cut_begins_anew(s3: S3) -> None:
    s3.put("bucket", "x/train.csv", b"")
    place = GrowingPlace("s3://bucket/x/steps2.csv", Reading())
    assert not place.is_there()
    assert not place.changed()
    for rows, restarted in ((20, False), (40, False), (10, True)):
        s3.put("bucket", "x/steps2.csv", log_of(rows))
        assert place.changed()
        assert not place.changed()
        assert place.restarted == restarted
        assert len(place.load().steps) == rows
    assert place.exists
    del s3.objects["bucket", "x/steps2.csv"]
    assert not place.changed()
    assert place.gone


def test_a_look_at_a_run_is_one_request(s3: S3, tmp_path: Path) -> None:
    s3.upload(write_run(tmp_path / "x"), "bucket", "x")
    place = GrowingPlace("s3://bucket/x", Reading())
    assert place.changed()
    s3.forget()
    assert not place.changed()
    assert len(s3.requests) == 1
    assert len(place.load(ended=True).steps) == 60


def test_a_store_that_does_not_answer_for_a_while_ends_no_watch(s3: S3) -> None:
    s3.put("bucket", "steps.csv", log_of(20))
    place = GrowingPlace("s3://bucket/steps.csv", Reading())
    assert place.changed()
    s3.refuse = True
    assert place.changed()  # so that it is read, which says why it cannot be
    with pytest.raises(StoreError, match="access is denied"):
        place.load()
    s3.refuse = False
    assert not place.changed()


def test_the_web_is_not_followed() -> None:
    with pytest.raises(StoreError, match="a file on the web cannot be followed"):
        GrowingPlace("https://host/x.csv", Reading())


def test_nothing_yet_is_no_log(s3: S3) -> None:
    s3.put("bucket", "y", b"")
    with pytest.raises(InputError, match="s3://bucket/x: no such object or folder"):
        GrowingPlace("s3://bucket/x", Reading()).load()
