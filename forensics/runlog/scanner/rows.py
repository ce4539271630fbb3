"""Rows of a foreign log, gathered one by one or by the thousand, into a step table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import InputError
from forensics.runlog.csv_reader.builder import TableBuilder
from forensics.runlog.csv_reader.epoch_numbering import numbered_through
from forensics.runlog.csv_reader.fast import Piece, parse_fast
from forensics.runlog.csv_reader.header import USABLE, Layout
from forensics.runlog.csv_reader.ordering import in_order
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.coverage import with_interval
from forensics.runlog.scanner.numbers import counts, floats
from forensics.runlog.scanner.same_step import merge_same_step
from forensics.runlog.scanner.skip_totals import with_sampled_flags
from forensics.runlog.scanner.thinning import Thinning
from forensics.runlog.schema import Kind, spec_of
from forensics.runlog.steps import Column, StepTable, text_column

_BATCH = 8192
_MOST_ROOM = 50_000_000
_DELIMITER = b";"
_JOIN = _DELIMITER.join
_NUMBER = rb"[1-9]\d{0,2}(?>,\d{3})++(?>\.\d+)?+"
_SEPARATED = re.compile(_NUMBER + rb"(?>\n" + _NUMBER + rb")*+")
"""Numbers with separators for thousands, one a line."""
_DTYPES: Mapping[Kind, Any] = {Kind.INT: np.int64, Kind.FLAG: np.bool_, Kind.FLOAT: np.float64}

TELLING = (*USABLE, "skipped", "skipped_steps")
"""Columns of which one at least is needed to judge a training."""

Cell = float | int | bool | str | None


class Rows:
    """Gathers rows in the order of the file.

    Args:
        log: where it is noted what had to be mended.
        size: bytes of the whole log, by which ``match`` makes room at once: growing costs memory.
    """

    def __init__(self, log: RepairLog, size: int = 0) -> None:
        self._builder = TableBuilder(0, on_disk=log.most_rows is None)
        self._thinning = Thinning(log.most_rows)
        self._log = log
        self._size = size
        self._steps: list[int] = []
        self._cells: list[Mapping[str, Cell]] = []

    def __len__(self) -> int:
        return self._thinning.dropped + len(self._builder) + len(self._steps)

    def expect(self, rows: int) -> None:
        """Make room for about so many rows at once; called before the first one."""
        self._builder.expected = min(max(rows, 0), self._log.most_rows or _MOST_ROOM)

    def add(self, step: int, cells: Mapping[str, Cell]) -> None:
        """Append one row; a cell that is None or missing is absent, NaN was written as NaN."""
        self._steps.append(step)
        self._cells.append(cells)
        if len(self._steps) >= _BATCH:
            self._flush()

    def match(self, pattern: re.Pattern[bytes], block: bytes) -> int:
        """Append a row for each match of a pattern whose groups are named as the columns.

        One ``findall`` and one pass of the CSV parser, so that short lines are read at 50 MB/s.
        Cells are absent where a group took no part or holds no number; a match without a step is
        no row.

        Args:
            pattern: every group has a name, one of them is ``step``.
            block: clean text (``LogSource.blocks``).

        Returns:
            How many rows were appended.
        """
        return self.take(tuple(pattern.groupindex), pattern.findall(block), len(block))

    def take(self, names: tuple[str, ...], found: Sequence[tuple[bytes, ...]], size: int) -> int:
        """Append cells that were found in a block of ``size`` bytes.

        As ``match``, for a reader that must look at the matches first.

        Args:
            names: the columns, ``step`` among them.
            found: the cells of each row, as text.
            size: bytes of the block.
        """
        self._flush()
        if not found:
            return 0
        before = len(self)
        if not before and self._size:
            share = self._size / max(size, 1)
            self.expect(int(1.05 * len(found) * share))
        text = b"\n".join(map(_JOIN, found)) + b"\n"
        pieces = parse_fast(text, _layout(names))
        if pieces is None and b"," in text and _only_thousands(text):
            pieces = parse_fast(text.replace(b",", b""), _layout(names))
        if pieces is None:
            self.extend(_loosely(names, found))
        for columns in pieces or ():
            self._append(columns)
        return len(self) - before

    def extend(self, columns: Mapping[str, NDArray[Any] | tuple[NDArray[Any], Any]]) -> None:
        """Append many rows at once.

        Args:
            columns: ``step`` and others, each an array of shape (rows,), or a pair of it and the
                mask of the cells that are there (None for all), as ``numbers.floats`` gives.
        """
        self._flush()
        pieces = {}
        for name, given in columns.items():
            values, present = given if isinstance(given, tuple) else (given, None)
            spec = spec_of(name)
            kind = spec.kind if spec is not None else Kind.FLOAT
            if kind is not Kind.FLOAT and values.dtype.kind == "f":
                whole = np.isfinite(values) & (np.abs(values) < 2.0**63)
                present = whole if present is None else present & whole
                values = np.where(whole, values, 0)
            pieces[name] = Piece(np.asarray(values, dtype=_DTYPES[kind]), present)
        if len(pieces["step"].values):
            self._append(pieces)

    def table(
        self,
        source_format: str,
        facts: LogFacts,
        *,
        where: object = None,
        must_tell: bool = True,
    ) -> StepTable:
        """Everything that was gathered, in order of step.

        Lines that several ranks (or a trainer and its evaluation) wrote for one step become one
        row; restarts and second runs are set aside as ``earlier``.

        Args:
            source_format: name of the importer.
            facts: what it learned.
            where: the file, for errors.
            must_tell: refuse a log by which no training can be judged.

        Raises:
            InputError: there is no row, or ``must_tell`` and no column to judge by.
        """
        self._flush()
        if not len(self._builder):
            raise nothing_found(source_format, where)
        columns = numbered_through(self._settled().finish(), self._log)
        columns = merge_same_step(columns, self._log)
        if must_tell and not any(map(columns.__contains__, TELLING)):
            raise nothing_found(source_format, where)
        if self._thinning.dropped:
            facts = replace(facts, interval=None)
        return finished(columns, source_format, facts, self._log)

    def _flush(self) -> None:
        if not self._steps:
            return
        pieces = {"step": Piece(np.array(self._steps, dtype=np.int64))}
        names = dict.fromkeys(name for cells in self._cells for name in cells)
        for name in names:
            pieces[name] = _piece(name, [cells.get(name) for cells in self._cells])
        self._steps, self._cells = [], []
        self._append(pieces)

    def _append(self, pieces: Mapping[str, Piece]) -> None:
        self._builder.append(pieces)
        if self._thinning.due(len(self._builder)):
            self._builder = self._thinning.thinned(self._builder)

    def _settled(self) -> TableBuilder:
        """All rows; where there were too many, those that remain."""
        self._builder = self._thinning.settled(self._builder)
        if count := self._thinning.dropped:
            self._log.note("thinned-rows", count=count, detail=f"{self._thinning.stride:,}")
        return self._builder


def finished(
    columns: Mapping[str, Column],
    source_format: str,
    facts: LogFacts,
    log: RepairLog,
) -> StepTable:
    """A table of columns in file order: sorted, cut at restarts, with what each row covers."""
    table = in_order(columns, lambda row: 0, log)
    table = with_sampled_flags(with_interval(table, facts))
    earlier = tuple(
        replace(with_interval(old, facts), source_format=source_format, facts=facts)
        for old in table.earlier
    )
    return replace(
        table, repairs=log.repairs(), source_format=source_format, facts=facts, earlier=earlier
    )


def nothing_found(source_format: str, where: object) -> InputError:
    """The error for a file in which no record of a format was found."""
    return InputError(
        f"has no record of training as {source_format} writes it",
        where=where,
        hint="`forensics convert --formats` lists the formats that --format-in can name",
    )


def _only_thousands(text: bytes) -> bool:
    """Do all commas in joined cells separate thousands, and can mean nothing else?"""
    cells = text.replace(_DELIMITER, b"\n").split(b"\n")
    return _SEPARATED.fullmatch(b"\n".join(cell for cell in cells if b"," in cell)) is not None


@cache
def _layout(names: tuple[str, ...]) -> Layout:
    """How joined cells are parsed: floats, but for the columns that are something else."""
    specs = [spec_of(name) for name in names]
    kinds = tuple(spec.kind if spec is not None else Kind.FLOAT for spec in specs)
    return Layout(names, kinds, names, _DELIMITER.decode())


def _loosely(names: Sequence[str], found: Sequence[tuple[bytes, ...]]) -> dict[str, Any]:
    """Matches of which some cell is spelled oddly, cell by cell."""
    cells = dict(zip(names, map(list, zip(*found, strict=True)), strict=True))
    there = [bool(cell) for cell in cells["step"]]
    columns: dict[str, Any] = {
        name: floats(list(compress(column, there)))
        for name, column in cells.items()
        if name != "step"
    }
    columns["step"] = counts(list(compress(cells["step"], there)))
    return columns


def _piece(name: str, cells: Sequence[Cell]) -> Piece:
    spec = spec_of(name)
    kind = spec.kind if spec is not None else Kind.FLOAT
    if kind is Kind.TEXT:
        column = text_column(["" if cell is None else str(cell) for cell in cells])
        return Piece(column.values, None, column.categories)
    dtype = _DTYPES[kind]
    if kind is Kind.FLOAT:
        numbers = np.array(cells, dtype=dtype)  # in which None is NaN
        if not np.isnan(numbers).any():
            return Piece(numbers, None)
    elif not set(map(type, cells)) <= {int}:
        cells = [_whole(cell) for cell in cells]
    present = np.array([cell is not None for cell in cells], dtype=bool)
    filler: Any = np.nan if kind is Kind.FLOAT else 0
    values = np.array([filler if cell is None else cell for cell in cells], dtype=dtype)
    return Piece(values, None if present.all() else present)


def _whole(cell: Cell) -> int | bool | None:
    """A cell of a column of counts or flags; what is no whole number of 64 bits is absent."""
    if cell is None or isinstance(cell, str):
        return None
    return int(cell) if math.isfinite(cell) and abs(cell) < 2**63 else None
