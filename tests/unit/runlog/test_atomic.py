"""Replacing files whole."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from forensics.runlog import atomic
from forensics.runlog.atomic import atomic_write, replacing, rewrite


def test_text_and_bytes_replace_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    atomic_write(path, "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    atomic_write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path]


def give_up_half_way(temporary: Path, path: Path) -> None:
    temporary.write_text("half")
    assert temporary.parent == path.parent  # else the rename could cross file systems
    raise RuntimeError


def test_a_body_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        give_up_half_way(temporary, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_rename_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise PermissionError("held open")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(PermissionError):
        atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "nowhere" / "x", "data")


def test_a_file_is_written_over_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("the old contents")
    inode = path.stat().st_ino
    rewrite(path, "new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_ino == inode


def test_what_does_not_fit_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    write_over, full = atomic._write_over, OSError(28, "No space left on device")

    def fits_three(file: io.FileIO, payload: bytes) -> None:
        write_over(file, payload[:3])
        if len(payload) > 3:
            raise full

    monkeypatch.setattr(atomic, "_write_over", fits_three)
    with pytest.raises(OSError, match="No space left"):
        rewrite(path, "newer")
    assert path.read_text() == "old"
