"""Columns that grow piece by piece: each cell is copied once, and no table is there twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.runlog.csv_reader.cells import is_absent, parse_number
from forensics.runlog.csv_reader.fast import Piece
from forensics.runlog.schema import spec_of
from forensics.runlog.steps import BoolArray, Column, all_present, canonical_order

_RoomOf = Callable[[int, "np.dtype[Any]"], "NDArray[Any]"]
_LONG = 16 << 20
"""Bytes of a column from which on it may lie on disk."""
_MARGIN = 20
"""A mapped file that no longer fits the disk ends the process: there must be room for many."""


class TableBuilder:
    """Gathers rows; a column that a piece lacks is absent in its rows.

    Args:
        expected: rows there will be, about; more cost a move in memory.
        on_disk: long columns may lie in files without a name, which the system can write out.
    """

    def __init__(self, expected: int, *, on_disk: bool = False) -> None:
        self.expected = expected
        self._room = _room_on_disk if on_disk else _room
        self._columns: dict[str, _ColumnBuilder] = {}
        self._rows = 0
        self._lines: list[tuple[int, int | NDArray[np.int64]]] = []

    def __len__(self) -> int:
        return self._rows

    def append(
        self, pieces: Mapping[str, Piece], *, first_line: int = 0, lines: Sequence[int] = ()
    ) -> None:
        """Append rows: on consecutive lines from ``first_line``, or on ``lines``."""
        if not pieces:
            return
        count = len(next(iter(pieces.values())).values)
        for name, piece in pieces.items():
            if name not in self._columns:
                room = max(self.expected, self._rows + count)
                self._columns[name] = _ColumnBuilder(piece.values.dtype, room, self._room)
            self._columns[name].append(piece, self._rows)
        numbers = np.array(lines, dtype=np.int64) if lines else first_line
        self._lines.append((self._rows, numbers))
        self._rows += count

    def line_of(self, row: int) -> int:
        """Line in the file that a row was read from, counting from 1."""
        firsts = [first for first, _ in self._lines]
        index = int(np.searchsorted(firsts, row, side="right")) - 1
        first, lines = self._lines[index]
        return lines + row - first if isinstance(lines, int) else int(lines[row - first])

    def finish(self) -> dict[str, Column]:
        """All columns, the canonical ones first; ``step`` counts the rows where there is none."""
        columns = {name: grown.finish(self._rows, name) for name, grown in self._columns.items()}
        if "step" not in columns:
            rows = np.arange(self._rows, dtype=np.int64)
            columns["step"] = Column(rows, all_present(self._rows))
        return {name: columns[name] for name in canonical_order(columns)}


class _ColumnBuilder:
    """One column in arrays with room to grow; room that is never filled takes no memory."""

    def __init__(self, dtype: np.dtype[Any], room: int, room_of: _RoomOf) -> None:
        self._room = room_of
        self._values = room_of(room, dtype)
        self._present: BoolArray | None = None
        self._end = 0
        self._codes: dict[str, int] = {"": 0}

    def append(self, piece: Piece, row: int) -> None:
        """Append rows from ``row`` on; the rows before that were skipped are absent."""
        self._skip_to(row)
        end = row + len(piece.values)
        self._reserve(end)
        self._values[row:end] = self._own_codes(piece) if piece.texts else piece.values
        if piece.present is not None:
            self._mask()[row:end] = piece.present
        elif self._present is not None:
            self._present[row:end] = True
        self._end = end

    def finish(self, rows: int, name: str) -> Column:
        """The column; it is of no more use afterwards."""
        self._skip_to(rows)
        values = self._values[:rows]
        if values.dtype == np.int32:
            return self._text(values, name)
        return Column(values, all_present(rows) if self._present is None else self._present[:rows])

    def _text(self, values: NDArray[np.int32], name: str) -> Column:
        texts = tuple(self._codes)
        meanings = None if spec_of(name) is not None else _all_numbers(texts)
        if meanings is None:
            return Column(values, values != 0, texts)
        return Column(meanings.values[values], meanings.present[values])

    def _own_codes(self, piece: Piece) -> NDArray[np.int32]:
        """A text piece in this column's codes."""
        codes = [self._codes.setdefault(text, len(self._codes)) for text in piece.texts]
        if codes == list(range(len(codes))):
            return piece.values
        own: NDArray[np.int32] = np.array(codes, dtype=np.int32)[piece.values]
        return own

    def _skip_to(self, row: int) -> None:
        if row > self._end:
            self._reserve(row)
            self._values[self._end : row] = _absent(self._values.dtype)
            self._mask()[self._end : row] = False
            self._end = row

    def _mask(self) -> BoolArray:
        if self._present is None:
            self._present = self._room(len(self._values), np.dtype(bool))
            self._present[: self._end] = True
        return self._present

    def _reserve(self, rows: int) -> None:
        room = len(self._values)
        if rows > room:
            room = max(rows, room + room // 2)
            self._values = self._moved(self._values, room)
            if self._present is not None:
                self._present = self._moved(self._present, room)

    def _moved(self, array: NDArray[Any], room: int) -> NDArray[Any]:
        larger = self._room(room, array.dtype)
        larger[: self._end] = array[: self._end]
        return larger


def _room(rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array with undefined contents; what is never touched takes no memory.

    From Arrow's allocator: the first touch of fresh pages costs half as much as parsing does,
    and Arrow hands out again what the blocks before have used.
    """
    return np.frombuffer(pa.allocate_buffer(rows * dtype.itemsize), dtype, count=rows)


def _room_on_disk(rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The same in a file, where it is long and the disk has room for all of it many times over."""
    size = rows * dtype.itemsize
    if size < _LONG:
        return _room(rows, dtype)
    import mmap
    import shutil
    import tempfile

    try:
        if shutil.disk_usage(tempfile.gettempdir()).free < _MARGIN * size:
            return _room(rows, dtype)
        with tempfile.TemporaryFile(prefix="forensics-") as file:
            file.truncate(size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count=rows)
    except OSError:
        return _room(rows, dtype)


def _absent(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind == "f" else 0


def _all_numbers(texts: Sequence[str]) -> Column | None:
    """What the texts of a column the schema does not know mean, if all are numbers or absent.

    A column that is empty in the rows first looked at is taken as text until here.
    """
    numbers = [None if is_absent(text) else parse_number(text) for text in texts]
    absent = [is_absent(text) for text in texts]
    if any(number is None and not gone for number, gone in zip(numbers, absent, strict=True)):
        return None
    values = np.array([np.nan if number is None else number for number in numbers])
    return Column(values, ~np.array(absent, dtype=bool))
