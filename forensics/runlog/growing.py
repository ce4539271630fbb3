"""A log or run that is still being written, read again as it grows.

A large log is not read from its start each time: after the first reading its beginning, which
tells the format, and its last part are read, where they lie. A line that is not finished is left
for the next time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from forensics.errors import InputError
from forensics.runlog.csv_reader.spans import Span, reading_only
from forensics.runlog.reading import Reading
from forensics.runlog.run import Run, load_run
from forensics.runlog.steps import StepTable

WINDOW = 48 << 20
"""Bytes at the end of a log that are read again; at 50 MB/s that takes a second."""
HEAD = 512 << 10
"""Bytes at its beginning that are read with them."""
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_WHOLE = frozenset(
    ("hf-trainer-state", "tensorboard", "json-history", "hf-model-card", "tensorboard-scalar")
)
"""Formats that are no lines: a part of such a file is nothing."""
_STEP = 1 << 20
_START = 64 << 10
"""Bytes at the beginning by which a log is known to be the same, whatever file it is in."""
_DEPTH = 3
_MOST_FILES = 2000

_UNFINISHED = frozenset(("torn-gzip",))
Entry = tuple[str, int, int, int]
"""Name, file, size and time of change of a file."""
Signature = tuple[Entry, ...]
"""Those of each file that is watched."""


class GrowingLog:
    """A file or directory that another process writes.

    Args:
        path: a log, or a directory with a run or logs in it.
        reading: what the user says of it.
        window: bytes at the end of a log that are read again.

    Attributes:
        path: as given.
        restarted: has the file been cut, or replaced by another log, since the last look?
        gone: was it there, and is no more?
    """

    def __init__(self, path: Path, reading: Reading, *, window: int = WINDOW) -> None:
        self.path = path
        self.restarted = False
        self.gone = False
        self._start = b""
        self._reading = reading
        self._window = window
        self._seen: Signature = ()
        self._read_whole = False

    def is_there(self) -> bool:
        """Is there anything at the path now?"""
        return self.path.exists()

    def changed(self) -> bool:
        """Has anything been written since the last call? A missing file has not changed."""
        now = _signature(self.path)
        self.gone = bool(self._seen) and not now
        if not now or now == self._seen:
            return False
        one = len(now) == len(self._seen) == 1 and not self.path.is_dir()
        start = _start_of(self.path)
        self.restarted = one and self._begun_anew(self._seen[0], now[0], start)
        if self.restarted:
            self._read_whole = False
        self._seen, self._start = now, start
        return True

    def _begun_anew(self, before: Entry, now: Entry, start: bytes) -> bool:
        """Is it shorter than it was, or does it begin otherwise?

        A log that is copied from elsewhere again and again is another file each time, and one that
        was cut may have grown beyond its former size before anybody looked.
        """
        if now[2] < before[2]:
            return True
        if not self._in_lines():  # a document begins as its last state wants it
            return False
        return not start.startswith(self._start)

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
            run = load_run(self.path, self._reading)
            return run if ended else _still_written(run)
        try:
            spans = self._spans()
            with reading_only(self.path, spans):
                run = load_run(self.path, self._reading)
        except OSError as error:  # rotated away while it was read
            raise InputError(error.strerror or str(error), where=self.path) from error
        self._read_whole = True
        return run if len(spans) == 1 else _without_the_hole(run)

    def _spans(self) -> list[Span]:
        """Which bytes to read, whole lines: all the first time, then the beginning and the end."""
        with self.path.open("rb") as file:
            number = file.fileno()
            size = os.fstat(number).st_size
            end = _line_before(number, size)
            if not self._read_whole or size <= self._window + HEAD:
                return [(0, end)]
            head = _line_before(number, HEAD) or HEAD
            start = _line_after(number, max(size - self._window, head))
            return [(0, head), (min(start, end), end)]

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


def _still_written(run: Run) -> Run:
    """The run without what is no damage while somebody writes: an archive has no end yet."""
    repairs = tuple(repair for repair in run.steps.repairs if repair.kind not in _UNFINISHED)
    return replace(run, steps=replace(run.steps, repairs=repairs))


def _without_the_hole(run: Run) -> Run:
    """The run of which a part in the middle was not read: nor is it known which line is which."""
    table = _after_the_hole(run.steps)
    if table.facts is not None:
        table = replace(table, facts=replace(table.facts, ended_line=None))
    return replace(run, steps=table)


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


def _entry(path: Path) -> Entry:
    status = path.stat()
    return (path.name, status.st_ino, status.st_size, status.st_mtime_ns)


def _entries(directory: Path) -> Iterator[Entry]:
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


def _start_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_START)
    except OSError:  # a directory, or gone this moment
        return b""


def _line_after(source: int, start: int) -> int:
    """Where the next line begins."""
    at = start
    while chunk := os.pread(source, _STEP, at):
        ends = [end for end in (chunk.find(b"\n"), chunk.find(b"\r")) if end >= 0]
        if ends:
            return at + min(ends) + 1
        at += len(chunk)
    return at


def _line_before(source: int, stop: int) -> int:
    """Where the last whole line before a place ends; 0 where there is none."""
    while stop > 0:
        start = max(stop - _STEP, 0)
        chunk = os.pread(source, stop - start, start)
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if last >= 0:
            return start + last + 1
        stop = start
    return 0
