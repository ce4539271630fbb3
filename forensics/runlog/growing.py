"""A log or run that is still being written, read again as it grows.

A large log is not read from its start each time: after the first reading its beginning, which
tells the format, and its last part are read. A line that is not finished is left for the next time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from forensics.errors import InputError
from forensics.runlog.reading import Reading
from forensics.runlog.run import Run, load_run
from forensics.runlog.steps import StepTable

WINDOW = 48 << 20
"""Bytes at the end of a log that are read again; at 50 MB/s that takes a second."""
HEAD = 512 << 10
"""Bytes at its beginning that are read with them."""
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_WHOLE = frozenset(("hf-trainer-state", "tensorboard"))
"""Formats that are no lines: a part of such a file is nothing."""
_COPY = 1 << 20
_DEPTH = 3
_MOST_FILES = 2000

Signature = tuple[tuple[str, int, int, int], ...]
"""Name, file, size and time of change of each file that is watched."""


class GrowingLog:
    """A file or directory that another process writes.

    Args:
        path: a log, or a directory with a run or logs in it.
        reading: what the user says of it.
        window: bytes at the end of a log that are read again.

    Attributes:
        path: as given.
        restarted: has the file been cut, or replaced by another, since the last look?
    """

    def __init__(self, path: Path, reading: Reading, *, window: int = WINDOW) -> None:
        self.path = path
        self.restarted = False
        self._reading = reading
        self._window = window
        self._seen: Signature = ()
        self._read_whole = False

    def changed(self) -> bool:
        """Has anything been written since the last call? A missing file has not changed."""
        now = _signature(self.path)
        if not now or now == self._seen:
            return False
        self.restarted = len(now) == len(self._seen) == 1 and _begun_anew(self._seen[0], now[0])
        if self.restarted:
            self._read_whole = False
        self._seen = now
        return True

    @property
    def exists(self) -> bool:
        """Was there anything to read at the last look?"""
        return bool(self._seen)

    def load(self, *, ended: bool = False) -> Run:
        """The run as far as it is written.

        Args:
            ended: nobody writes any more: a last line without a line end is read, too.

        Raises:
            InputError: it cannot be read, or holds no record yet.
            UsageError: the reading names a format or column that is not there.
        """
        if ended or self.path.is_dir() or not self._in_lines():
            return load_run(self.path, self._reading)
        span = self._span()
        try:
            with _whole_lines(self.path, span) as copy:
                run = load_run(copy, self._reading)
        except InputError as error:
            raise InputError(error.what, where=self.path, hint=error.hint) from error
        except OSError as error:  # rotated away while it was read
            raise InputError(error.strerror or str(error), where=self.path) from error
        self._read_whole = True
        if span[1]:
            run = replace(run, steps=_after_the_hole(run.steps))
        return replace(run, path=self.path)

    def _span(self) -> tuple[int, int]:
        """Bytes to read at the beginning and at the end; all of them the first time."""
        size = self.path.stat().st_size
        if self._read_whole and size > self._window + HEAD:
            return HEAD, self._window
        return size, 0

    def _in_lines(self) -> bool:
        """Is it plain text of lines, of which a part can be read?"""
        from forensics.runlog.importers.detect import detect
        from forensics.runlog.scanner.head import Head
        from forensics.runlog.steps_csv import is_own_log

        try:
            with self.path.open("rb") as file:
                start = file.read(64 << 10)
        except OSError:
            return False
        if start.startswith(_PACKED) or b"\0" in start[:4096]:
            return False
        if self._reading.format_in:
            return self._reading.format_in not in _WHOLE
        if is_own_log(self.path):
            return self.path.name not in ("steps.csv", "run.json")
        choice = detect(Head(self.path.name, start, start, complete=False), self._reading)
        return choice is None or choice.importer.name not in _WHOLE


def _after_the_hole(table: StepTable) -> StepTable:
    """The rows of the last part alone: those of the beginning only make a hole before it."""
    distance = np.diff(table.step)
    if not len(distance) or distance.max() <= 2 * np.median(distance):
        return table
    return table.take(slice(int(np.argmax(distance)) + 1, None))


def _signature(path: Path) -> Signature:
    """What the file, or each file in a directory, looks like; empty where there is none."""
    try:
        if not path.is_dir():
            return (_entry(path),)
        return tuple(_entries(path))
    except OSError:
        return ()


def _entry(path: Path) -> tuple[str, int, int, int]:
    status = path.stat()
    return (path.name, status.st_ino, status.st_size, status.st_mtime_ns)


def _entries(directory: Path) -> Iterator[tuple[str, int, int, int]]:
    count = 0
    for home, folders, names in os.walk(directory):
        depth = len(Path(home).relative_to(directory).parts)
        folders[:] = sorted(folders) if depth + 1 < _DEPTH else []
        for name in sorted(names):
            try:
                yield _entry(Path(home, name))
            except OSError:  # replaced this moment
                continue
            count += 1
            if count >= _MOST_FILES:
                return


def _begun_anew(before: tuple[str, int, int, int], now: tuple[str, int, int, int]) -> bool:
    """Is it shorter than it was, or another file under the same name?"""
    return now[2] < before[2] or (now[1] != before[1] and now[2] < 2 * before[2])


@contextmanager
def _whole_lines(path: Path, span: tuple[int, int]) -> Iterator[Path]:
    """A copy of the beginning and the end of a log, whole lines only."""
    head, tail = span
    with tempfile.TemporaryDirectory(prefix="forensics-") as folder:
        copy = Path(folder) / path.name
        with path.open("rb") as file, copy.open("wb") as out:
            _copy(file.fileno(), out.fileno(), 0, head)
            if tail:
                _cut_at_line(copy)
                size = os.fstat(file.fileno()).st_size
                out.seek(0, os.SEEK_END)
                start = _line_after(file.fileno(), max(size - tail, head))
                _copy(file.fileno(), out.fileno(), start, size - start)
        _cut_at_line(copy)
        yield copy


def _copy(source: int, target: int, start: int, count: int) -> None:
    while count > 0:
        chunk = os.pread(source, min(_COPY, count), start)
        if not chunk:
            return
        os.write(target, chunk)
        start, count = start + len(chunk), count - len(chunk)


def _line_after(source: int, start: int) -> int:
    """Where the next line begins."""
    at = start
    while chunk := os.pread(source, _COPY, at):
        end = max(chunk.find(b"\n"), chunk.find(b"\r"))
        if end >= 0:
            return at + end + 1
        at += len(chunk)
    return at


def _cut_at_line(copy: Path) -> None:
    """Take the last line away where it is not finished."""
    with copy.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(end - _COPY, 0)
            file.seek(start)
            chunk = file.read(end - start)
            last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
            if last >= 0:
                file.truncate(start + last + 1)
                return
            end = start
        file.truncate(0)
