"""A whole log, from its first line to its last, into one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from forensics.errors import InputError
from forensics.frozen import dataclass
from forensics.runlog.csv_reader.ahead import worked_ahead
from forensics.runlog.csv_reader.builder import TableBuilder
from forensics.runlog.csv_reader.cells import WRAPPED
from forensics.runlog.csv_reader.fast import Piece, parse_fast
from forensics.runlog.csv_reader.header import (
    SAMPLE,
    USABLE,
    Layout,
    Naming,
    is_preamble,
    read_header,
    settle,
)
from forensics.runlog.csv_reader.mending import Mender, mend_last_line
from forensics.runlog.csv_reader.ordering import in_order
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.csv_reader.source import read_lines
from forensics.runlog.csv_reader.spans import size_of
from forensics.runlog.steps import StepTable

_MOST_ROOM = 50_000_000
"""Rows that room is made for at once; a larger file grows from there."""
_STRETCH = 1 << 18
"""Bytes read line by line around a line that the fast path refuses."""


def read_table(
    path: Path, naming: Naming | None = None, progress: Callable[[int, int], None] | None = None
) -> StepTable:
    """Read a step log; see ``forensics.runlog.steps_csv.read_steps``.

    Args:
        path: the file.
        naming: canonical names of columns that a foreign format names in its own way.
        progress: told the bytes read so far, and of how many.
    """
    if progress is None:
        return _read(path, naming, lambda _: None)
    size = path.stat().st_size if path.is_file() else 0
    try:
        return _read(path, naming, lambda done: progress(min(done, max(size - 1, 0)), size))
    finally:
        progress(size, size)


def _read(path: Path, naming: Naming | None, tell: Callable[[int], None]) -> StepTable:
    log = RepairLog()
    blocks = read_lines(path, log, tell)
    line, header, rest = _first_line(blocks, path, log)
    layout = read_header(header, path, log, naming)
    first = rest or next(blocks, b"")
    layout = settle(layout, _sample(first), log)
    reader = _Reader(layout, log, line + 1, _expected(first, path))
    for block, parsed in worked_ahead(chain([first], blocks), reader.parse):
        reader.read(block, parsed)
    if not len(reader.builder):
        raise _nothing(path, log)
    table = in_order(reader.builder.finish(), reader.builder.line_of, log)
    if not any(table.has(name) for name in USABLE):
        raise _nothing(path, log)
    if layout.ours:
        _note_empty_cells(table, log)
    source = "forensics" if layout.ours else "csv"
    return replace(table, repairs=log.repairs(), source_format=source)


def _note_empty_cells(table: StepTable, log: RepairLog) -> None:
    """Cells that each row of our own log has, and some do not; a column without any is no loss."""
    told = ("short-rows", "unparsable-cells", "doubtful-last-cell", "changed-header", "torn-rows")
    if any(log.count(kind) for kind in told):
        return  # told already
    absent = {
        name: len(table) - int(np.count_nonzero(table.present(name)))
        for name in ("lr", "loss")
        if table.has(name)
    }
    empty = {name: count for name, count in absent.items() if count}
    if empty:
        log.note("missing-cells", count=sum(empty.values()), detail=" and ".join(empty))


@dataclass(frozen=True)
class _Parsed:
    """A block as the fast path read it.

    Attributes:
        layout: that it was read by.
        pieces: its rows; None where the fast path refuses, or there are no whole lines.
        unwrapped: numbers taken out of ``tensor(…)`` and the like.
    """

    layout: Layout
    pieces: list[dict[str, Piece]] | None
    unwrapped: int


class _Reader:
    """Takes the blocks of a log in turn: fast where it is clean, mending where it is not."""

    def __init__(self, layout: Layout, log: RepairLog, line: int, expected: int) -> None:
        self.builder = TableBuilder(expected)
        self._mender = Mender(layout, log)
        self._log = log
        self._line = line

    def parse(self, block: bytes) -> _Parsed:
        """What the fast path makes of the whole lines of a block; changes nothing."""
        layout = self._mender.layout
        lines = _whole_lines(block)
        bare, unwrapped = WRAPPED.subn(rb"\1", lines) if layout.wrapped else (lines, 0)
        return _Parsed(layout, parse_fast(bare, layout) if bare else None, unwrapped)

    def read(self, block: bytes, parsed: _Parsed) -> None:
        """Take in one block; only the last one of a file may end without newline.

        Args:
            block: whole lines.
            parsed: what ``parse`` made of it. Mending the block before may have changed the
                layout since: then it is parsed again.
        """
        if parsed.layout is not self._mender.layout:
            parsed = self.parse(block)
        if not self._taken(parsed):
            for stretch in _stretches(_whole_lines(block)):
                if not self._taken(self.parse(stretch)):
                    self._mend(stretch)
        torn = block[block.rfind(b"\n") + 1 :]
        if torn:
            last = mend_last_line(torn, self._mender.layout, self._log, self._line)
            if last is not None:
                self._mend(last)

    def _taken(self, parsed: _Parsed) -> bool:
        """Append what the fast path read; False where it refused."""
        if parsed.pieces is None:
            return False
        if parsed.unwrapped:
            count = parsed.unwrapped
            self._log.note("odd-numbers", line=self._line, count=count, detail="tensor(…)")
        if parsed.layout.float_steps and not self._log.count("float-steps"):
            self._log.note("float-steps", line=self._line)
        for columns in parsed.pieces:
            self.builder.append(columns, first_line=self._line)
            self._line += len(next(iter(columns.values())).values)
        return True

    def _mend(self, block: bytes) -> None:
        for part in self._mender.mend(block, self._line):
            self.builder.append(part.columns, lines=part.lines)
        self._line += block.count(b"\n") - block.count(b"\0\n")


def _first_line(blocks: Iterator[bytes], path: Path, log: RepairLog) -> tuple[int, str, bytes]:
    """Number and text of the header line, and what follows it in its block."""
    number = 0
    for block in blocks:
        start = 0
        while start < len(block):
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            line = block[start:end].decode("utf-8", errors="replace")
            number += 1
            if not is_preamble(line.strip("\0")):
                if number > 1:
                    log.note("preamble", count=number - 1)
                return number, line, block[end + 1 :]
            start = end + 1
    raise InputError("is empty", where=path, hint="no row was written, or the file was cut to none")


def _sample(block: bytes) -> list[str]:
    """Some whole lines from the beginning of a block, and from its end."""
    head = block[: 1 << 17].decode("utf-8", errors="replace").split("\n")[:-1]
    tail = block[-(1 << 14) :].decode("utf-8", errors="replace").split("\n")[1:-1]
    return [line for line in (head[: SAMPLE // 2] + tail[-SAMPLE // 2 :]) if line.strip("\0\r ")]


def _expected(block: bytes, path: Path) -> int:
    """About how many rows the file will give, judged by its first block."""
    lines = block.count(b"\n") + 1
    size = max(size_of(path), len(block))
    return min(lines + int(1.02 * lines * (size - len(block)) / max(len(block), 1)), _MOST_ROOM)


def _whole_lines(block: bytes) -> bytes:
    """The block up to its last newline."""
    return block if block.endswith(b"\n") else block[: block.rfind(b"\n") + 1]


def _stretches(block: bytes) -> Iterator[bytes]:
    """The block in stretches of whole lines."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start + _STRETCH) + 1 or len(block)
        yield block[start:end]
        start = end


def _nothing(path: Path, log: RepairLog) -> InputError:
    """No row was read: say why."""
    lost = [repair for repair in log.repairs() if repair.lossy]
    if lost:
        return InputError(
            f"has no row that can be read ({lost[0].message})",
            where=path,
            hint="a step log is a CSV with one row a step under a header",
        )
    return InputError(
        "has a header but no rows with values", where=path, hint="the first step was not finished"
    )
