"""Where the text of a log comes from: files, compressed or not, or standard input."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.csv_reader.source import PACKED, read_chunks
from forensics.runlog.csv_reader.spans import opened, size_of
from forensics.runlog.scanner.cleaning import Dirt, clean, dirt_of
from forensics.runlog.scanner.ending import TAIL
from forensics.runlog.scanner.head import HEAD, Head

STDIN = "-"
BLOCK = 2 << 20
"""Bytes a block, about, and the longest line that is looked at."""
_MOST_PACKED = 64 << 20
"""Bytes of a compressed file that is decompressed once more for its end alone."""

Progress = Callable[[int, int], None]
"""Told the bytes read so far, and of how many; called about once a block."""


class LogSource:
    """The text of one run: one file, or several that continue each other.

    Args:
        paths: the files, oldest first.
        progress: told how far reading is.
        most_rows: rows from which on some of those alike may be left out; None for never.

    Attributes:
        paths: the files.
        log: where the reader notes what it mends.
        tail: the last part of the clean text that ``blocks`` gave.
        raw_tail: the last part of the last file that ``blocks`` gave, as it is.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        progress: Progress | None = None,
        most_rows: int | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self.log = RepairLog(most_rows)
        self.tail = self.raw_tail = b""
        self._progress = progress
        self._total = sum(size_of(path) for path in self.paths)
        self._heads: dict[int, Head] = {}

    @property
    def path(self) -> Path:
        """The first file."""
        return self.paths[0]

    @property
    def size(self) -> int:
        """Bytes of all files together, as they are on disk."""
        return self._total

    def head(self, size: int = HEAD) -> Head:
        """The first part of the first file."""
        if size not in self._heads:
            self._heads[size] = head_of(self.path, size)
        return self._heads[size]

    def blocks(self, *, before: bytes = b"") -> Iterator[bytes]:
        """The cleaned text in blocks of whole lines, file after file; none is larger than 4 MiB.

        Args:
            before: a record of several lines begins with this text: a block then ends before the
                last one in it, so that no record is cut (the very last record of a file is whole).
        """
        done = 0
        for path in self.paths:
            yield from self._blocks_of(path, before, done)
            done += size_of(path)
        self.finish()

    def finish(self) -> None:
        """Tell that reading has ended, however."""
        if self._progress is not None:
            self._progress(self._total, self._total)

    def whole(self, most: int) -> bytes:
        """The whole first file as it is, decompressed; InputError beyond ``most`` bytes."""
        parts, size = [], 0
        for chunk in read_chunks(self.path, self.log):
            parts.append(chunk)
            size += len(chunk)
            if size > most:
                raise InputError(f"is larger than {most >> 20} MiB", where=self.path)
        return b"".join(parts)

    def read_tail(self) -> None:
        """Set ``tail`` and ``raw_tail`` where the importer took no ``blocks``."""
        if not self.raw_tail:
            self.raw_tail = tail_of(self.paths[-1])
            self.tail = clean(self.raw_tail, dirt_of(self.raw_tail))

    def _blocks_of(self, path: Path, before: bytes, done: int) -> Iterator[bytes]:
        dirt: Dirt | None = None
        held = b""
        self.raw_tail = b""
        for block in _line_blocks(path, self.log, lambda at: self._tell(done + at)):
            if dirt is None:
                dirt = dirt_of(block[:HEAD])
            cleaned = clean(block, dirt)
            self.tail = (self.tail + cleaned[-TAIL:])[-TAIL:]
            self.raw_tail = (self.raw_tail + block[-TAIL:])[-TAIL:]
            text = held + cleaned
            held = b""
            if before:
                cut = _last_record(text, before)
                if len(text) - cut <= BLOCK:
                    text, held = text[:cut], text[cut:]
            if text:
                yield text
        if held:
            yield held

    def _tell(self, at: int) -> None:
        if self._progress is not None:
            self._progress(min(at, max(self._total - 1, 0)), self._total)


def _last_record(text: bytes, before: bytes) -> int:
    """Where the last record begins: its line, or the place in it where it is not the first."""
    at = max(text.rfind(before), 0)
    line = text.rfind(b"\n", 0, at) + 1
    return line if line or text.find(before) == at else at


def tail_of(path: Path) -> bytes:
    """The last part of a file; of a compressed one only where it is small."""
    size = size_of(path)
    with opened(path) as file:
        packed = file.read(4).startswith(PACKED)
        if not packed and size > TAIL and file.seekable():
            file.seek(size - TAIL)
            return file.read(TAIL)
    if packed and size > _MOST_PACKED:
        return b""
    tail = b""
    for chunk in read_chunks(path, RepairLog()):
        tail = (tail + chunk[-TAIL:])[-TAIL:]
    return tail


def newlines_in(path: Path) -> int:
    """How many line ends a file has, decompressed."""
    return sum(chunk.count(b"\n") for chunk in read_chunks(path, RepairLog()))


def head_of(path: Path, size: int = HEAD) -> Head:
    """The first part of a file, decompressed and cleaned.

    Raises:
        InputError: the file cannot be opened or decompressed, or is no text.
    """
    parts: list[bytes] = []
    have, complete = 0, True
    for chunk in read_chunks(path, RepairLog()):
        parts.append(chunk)
        have += len(chunk)
        if have > size:
            complete = False
            break
    raw = b"".join(parts)[:size]
    if not complete:
        # A bar that redraws itself has no newline for megabytes: then its last state ends it.
        end = max(raw.rfind(b"\n"), raw.rfind(b"\r")) + 1
        raw = raw[: end or size]
    return Head(path.name, raw, clean(raw, dirt_of(raw[:HEAD])), complete)


def _line_blocks(path: Path, log: RepairLog, tell: Callable[[int], None]) -> Iterator[bytes]:
    """Raw blocks that end at a line end (or a carriage return), but for the last one."""
    carry = b""
    for chunk in read_chunks(path, log, tell):
        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if cut == 0 and len(carry) + len(chunk) <= BLOCK:
            carry += chunk
            continue
        # A longer line holds no record that is worth the memory: it is cut where the block ends.
        cut = cut or len(chunk)
        yield carry + chunk[:cut]
        carry = chunk[cut:]
    if carry:
        yield carry


@contextmanager
def spooled(path: Path) -> Iterator[Path]:
    """Standard input (``-``) or a pipe as a file that can be read twice; other files as they are.

    Raises:
        InputError: standard input is a terminal or empty.
    """
    if str(path) != STDIN and not path.is_fifo():
        yield path
        return
    name = "stdin" if str(path) == STDIN else path.name
    with tempfile.TemporaryDirectory(prefix="forensics-") as folder:
        copy = Path(folder) / name
        with copy.open("wb") as out:
            for chunk in _stdin_chunks() if str(path) == STDIN else read_chunks(path, RepairLog()):
                out.write(chunk)
        yield copy


def _stdin_chunks() -> Iterator[bytes]:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError(
            "is a terminal", where="standard input", hint="pipe a log into it: cat train.log | …"
        )
    stream = sys.stdin.buffer
    while chunk := stream.read(BLOCK):
        yield chunk
