"""Encodings, line ends and marks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from forensics.errors import InputError
from forensics.runlog.steps_csv import read_steps
from tests.unit.runlog.logs import assert_same, kinds, log, read, row

TEXT = log(row(0), row(1, "nan"), row(2))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xef\xbb\xbf" + TEXT.encode(), "byte-order-mark"),
        (TEXT.encode("utf-16"), "other-encoding"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "other-encoding"),
        (TEXT.encode("utf-16-le"), "other-encoding"),
        (TEXT.encode("utf-16-be"), "other-encoding"),
        (TEXT.replace("\n", "\r\n").encode(), "crlf"),
        (TEXT.replace("\n", "\r").encode(), "cr-line-ends"),
    ],
)
def test_a_log_in_another_dress_reads_the_same(tmp_path: Path, data: bytes, kind: str) -> None:
    table = read(tmp_path, data)
    assert_same(table, read(tmp_path, TEXT))
    assert [(repair.kind, repair.lossy) for repair in table.repairs] == [(kind, False)]


@pytest.mark.parametrize("size", range(16, 120, 7))
def test_block_borders_fall_anywhere(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = read(tmp_path, TEXT)
    monkeypatch.setattr("forensics.runlog.csv_reader.source.BLOCK", max(size, 86))
    for text in (TEXT, TEXT.replace("\n", "\r\n")):
        assert_same(read(tmp_path, text), plain)


def test_a_carriage_return_inside_a_row_splits_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), row(1, "1\r"), row(2)))
    assert table.step.tolist() == [0, 1, 2]
    assert kinds(table) == []


def test_a_pipe_that_nobody_writes_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.runlog.csv_reader.source._PATIENCE", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"nobody writes|empty"):
        read_steps(tmp_path / "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(InputError, match="is a device"):
        read_steps(Path(device))


def test_a_pipe_reads_as_a_file_does(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(TEXT), daemon=True)
    writer.start()
    table = read_steps(pipe)
    writer.join()
    assert_same(table, read(tmp_path, TEXT))
