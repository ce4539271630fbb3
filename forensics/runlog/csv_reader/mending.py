"""Lines that the fast path refuses, one by one: each mend is noted, nothing is lost unseen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.frozen import dataclass
from forensics.runlog.csv_reader.cells import (
    FALSE,
    TRUE,
    is_absent,
    parse_flag,
    parse_number,
    parse_step,
)
from forensics.runlog.csv_reader.fast import Piece
from forensics.runlog.csv_reader.header import Layout, layout_of, split_cells
from forensics.runlog.csv_reader.repair_log import RepairLog, shown
from forensics.runlog.schema import CANONICAL_NAMES, Kind, spec_of
from forensics.runlog.steps import text_column

_BRACKET = re.compile(r"[()]")
_FEW_STRIDES = 16
"""Strides that lie between a row and the next one at most where no bytes are lost."""
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)
# A dot between the digits or none: `\d+\.?\d*` would try every split of a cell of a million digits.
_PLAIN_FLOAT = re.compile(
    r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf)\s*"
)


@dataclass(frozen=True)
class Mended:
    """Rows that were read line by line.

    Attributes:
        layout: the header in force.
        columns: the rows by column; empty where there is none.
        lines: line number of each row.
    """

    layout: Layout
    columns: dict[str, Piece]
    lines: tuple[int, ...]


class Mender:
    """Reads lines under a layout that a further header in the file may change.

    Attributes:
        layout: the header in force.
    """

    def __init__(self, layout: Layout, log: RepairLog) -> None:
        self.layout = layout
        self._log = log
        self._line = 0
        self._rows: list[list[str]] = []
        self._lines: list[int] = []

    def mend(self, block: bytes, first_line: int) -> Iterator[Mended]:
        """Read a block of whole lines; yields the rows, in several parts where a header changes."""
        lines = self._decoded(block)
        self._line = first_line
        after_hole = False
        for i, line in enumerate(lines):
            torn = line.endswith("\0")
            cells = line.rstrip("\0").split(self.layout.delimiter)
            following = lines[i + 1 : i + 9]
            if after_hole and not torn and self._is_fragment(cells, following):
                self._log.note("torn-rows", line=self._line)
            elif not torn and self._plain(line, cells):
                self._keep(cells)
            elif line.strip("\0 \r\t"):
                yield from self._take(line.rstrip("\0"), torn, following)
            after_hole = torn
            self._line += not torn  # a NUL mark is no line end of the file
        yield from self._give()

    def _is_fragment(self, cells: list[str], following: list[str]) -> bool:
        """After a run of NUL bytes: the end of a row whose beginning is lost, not a whole row?

        A row has all its cells, and its step is as near to the next one as that is to its next
        (within a few times: a log may skip some). What begins within a step's digits has neither.
        """
        if len(cells) < len(self.layout.names):
            return bool("".join(cells).strip()) and not self._is_header(cells)
        rows = (split_cells(line, self.layout.delimiter) for line in following)
        steps = [step for row in (cells, *rows) if (step := self._step_of(row)) is not None]
        if len(steps) < 3 or self._step_of(cells) is None:
            return False
        stride = max(abs(steps[2] - steps[1]), 1)
        return abs(steps[1] - steps[0]) > _FEW_STRIDES * stride

    def _plain(self, line: str, cells: list[str]) -> bool:
        """Is it a row like most: as many cells as columns, and a step of digits?"""
        index = self.layout.step_index
        return (
            len(cells) == len(self.layout.names)
            and index is not None
            and _DIGITS.fullmatch(cells[index]) is not None
            and '"' not in line
        )

    def _keep(self, cells: list[str]) -> None:
        self._rows.append(cells)
        self._lines.append(self._line)

    def _decoded(self, block: bytes) -> list[str]:
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError:
            text = block.decode("utf-8", errors="replace")
            bad = sum("\ufffd" in line for line in text.split("\n"))
            self._log.note("bad-encoding", count=bad)
        lines = text.replace("\r\n", "\n").split("\n")
        return lines[:-1] if not lines[-1] else lines

    # -- one line ---------------------------------------------------------------------------

    def _take(self, line: str, torn: bool, following: list[str]) -> Iterator[Mended]:
        layout = self.layout
        cells = split_cells(line, layout.delimiter)
        if len(cells) != len(layout.names) and "(" in line:
            cells = _split_outside_brackets(line, layout.delimiter)
        if self._ends_in_header(line):
            self._log.note("torn-rows", line=self._line)
            self._log.note("repeated-header", line=self._line)
        elif self._is_header(cells):
            yield from self._another_header(cells)
        elif torn:
            self._log.note("torn-rows", line=self._line, step=self._step_of(cells))
        elif len(cells) > len(layout.names):
            self._take_overlong(cells, following)
        else:
            self._take_row(cells)

    def _take_row(self, cells: list[str]) -> None:
        """A row with as many cells as columns, or fewer."""
        missing = len(self.layout.names) - len(cells)
        index = self.layout.step_index
        if index is not None and (index >= len(cells) or self._step_of(cells) is None):
            self._refuse(cells)
            return
        if missing and index is None and not self._any_value(cells):
            self._refuse(cells)
            return
        if missing:
            self._log.note("short-rows", line=self._line, step=self._step_of(cells))
            cells = cells + [""] * missing
        self._keep(cells)

    def _refuse(self, cells: list[str]) -> None:
        """A line that is no row, or a row that cannot be placed."""
        index = self.layout.step_index or 0
        if self._any_value(cells) and index < len(cells):
            self._log.note("bad-steps", line=self._line, detail=shown(cells[index]))
        else:
            text = self.layout.delimiter.join(cells)
            self._log.note("stray-lines", line=self._line, detail=shown(text))

    def _any_value(self, cells: Sequence[str]) -> bool:
        """Is there a number in the line, beside the step?"""
        index = self.layout.step_index
        return any(
            parse_number(cell, self.layout.decimal) is not None
            for i, cell in enumerate(cells)
            if i != index
        )

    def _step_of(self, cells: Sequence[str]) -> int | None:
        index = self.layout.step_index
        if index is None or index >= len(cells):
            return None
        return parse_step(cells[index], self.layout.decimal)

    # -- more cells than columns ------------------------------------------------------------

    def _take_overlong(self, cells: list[str], following: list[str]) -> None:
        width = len(self.layout.names)
        if not any(cell.strip() for cell in cells[width:]):
            self._log.note("extra-cells", line=self._line)
            self._take_row(cells[:width])
            return
        whole = self._second_of_glued(cells, following)
        if whole is None:
            self._log.note("overlong-rows", line=self._line, step=self._step_of(cells))
            return
        self._log.note("glued-rows", line=self._line, step=self._step_of(cells))
        self._keep(whole)

    def _second_of_glued(self, cells: list[str], following: list[str]) -> list[str] | None:
        """The whole row at the end of a line that begins with a cut one; None if it is not so.

        A restart that goes on in a torn line glues the cut cell to the new row's first one. All
        other cells of the new row are certain. Where the first one is the step, it must be the
        end of the glued cell and precede the step of the line after.
        """
        width = len(self.layout.names)
        index = self.layout.step_index
        if len(cells) >= 2 * width or self._step_of(cells) is None:
            return None
        whole = cells[-width:]
        if index != 0:
            whole = ["", *whole[1:]]
            return whole if self._step_of(whole) is not None else None
        next_line = next((line for line in following if line.strip("\0 \r")), "")
        after = self._step_of(split_cells(next_line, self.layout.delimiter))
        if after is None or not whole[0].strip().endswith(str(after - 1)) or after < 1:
            return None
        fits = all(
            is_absent(cell) or _fits(cell, kind, self.layout.decimal)
            for cell, kind in zip(whole[1:], self.layout.kinds[1:], strict=True)
        )
        return [str(after - 1), *whole[1:]] if fits else None

    # -- headers ----------------------------------------------------------------------------

    def _ends_in_header(self, line: str) -> bool:
        """Did a restart write the header into a line that a crash had cut?"""
        header = self.layout.delimiter.join(self.layout.header)
        return len(header) < len(line.rstrip()) and line.rstrip().endswith(header)

    def _is_header(self, cells: Sequence[str]) -> bool:
        if tuple(cells) == self.layout.header:
            return True
        if self._step_of(cells) is not None:
            return False
        names = sum(spec_of(cell.strip().lower()) is not None for cell in cells)
        numbers = any(parse_number(cell) is not None for cell in cells)
        return names >= 2 and not numbers

    def _another_header(self, cells: Sequence[str]) -> Iterator[Mended]:
        if [cell.strip() for cell in cells] == [cell.strip() for cell in self.layout.header]:
            self._log.note("repeated-header", line=self._line)
            return
        self._log.note("changed-header", line=self._line)
        yield from self._give()
        known = dict(zip(self.layout.names, self.layout.kinds, strict=True))
        fresh = layout_of(cells, self.layout.delimiter, RepairLog(), self.layout.naming)
        kinds = tuple(known.get(n, k) for n, k in zip(fresh.names, fresh.kinds, strict=True))
        if ("step" in fresh.names) != ("step" in self.layout.names):
            names = tuple("step (as written)" if n == "step" else n for n in fresh.names)
            kinds = tuple(
                Kind.FLOAT if n == "step" else kind
                for n, kind in zip(fresh.names, kinds, strict=True)
            )
            fresh = replace(fresh, names=names)
        self.layout = replace(fresh, kinds=kinds, decimal=self.layout.decimal)

    # -- columns ----------------------------------------------------------------------------

    def _give(self) -> Iterator[Mended]:
        """The rows gathered so far, as columns."""
        if not self._rows:
            return
        texts = zip(*self._rows, strict=True)
        columns = {
            name: self._column(cells, kind, name)
            for name, kind, cells in zip(self.layout.names, self.layout.kinds, texts, strict=True)
        }
        yield Mended(self.layout, columns, tuple(self._lines))
        self._rows, self._lines = [], []

    def _column(self, cells: Sequence[str], kind: Kind, name: str) -> Piece:
        if kind is Kind.TEXT:
            column = text_column(list(cells))
            return Piece(column.values, None, column.categories)
        if kind is Kind.INT:
            return Piece(self._steps(cells))
        if kind is Kind.FLOAT and all(map(_PLAIN_FLOAT.fullmatch, cells)):
            return Piece(np.array(list(map(float, cells)), dtype=np.float64))
        parse = parse_number if kind is Kind.FLOAT else parse_flag
        decimal = self.layout.decimal
        found: list[Any] = [None if is_absent(cell) else parse(cell, decimal) for cell in cells]
        self._note_cells(cells, found, name)
        present = np.array([value is not None for value in found], dtype=bool)
        absent, dtype = (np.nan, np.float64) if kind is Kind.FLOAT else (False, np.bool_)
        values: NDArray[Any] = np.array(
            [absent if value is None else value for value in found], dtype=dtype
        )
        return Piece(values, None if present.all() else present)

    def _note_cells(self, cells: Sequence[str], found: list[Any], name: str) -> None:
        """Note the cells that are no numbers, and those no other reader would take for one."""
        bad = [i for i, value in enumerate(found) if value is None and not is_absent(cells[i])]
        odd = [i for i, value in enumerate(found) if value is not None and self._odd(cells[i])]
        for kind, where in (("unparsable-cells", bad), ("odd-numbers", odd)):
            if where:
                line, detail = self._lines[where[0]], f"{name} {shown(cells[where[0]])}"
                self._log.note(kind, line=line, count=len(where), detail=detail)

    def _odd(self, cell: str) -> bool:
        return "(" in cell or "#" in cell or ("," in cell and self.layout.decimal == ".")

    def _steps(self, cells: Sequence[str]) -> NDArray[np.int64]:
        if all(map(_DIGITS.fullmatch, cells)):
            return np.array(list(map(int, cells)), dtype=np.int64)
        decimal = self.layout.decimal
        steps = [step for cell in cells if (step := parse_step(cell, decimal)) is not None]
        fractional = sum("." in cell or "," in cell for cell in cells)
        if fractional:
            self._log.note("float-steps", count=fractional, step=steps[0])
        return np.array(steps, dtype=np.int64)


def _fits(cell: str, kind: Kind, decimal: str) -> bool:
    if kind is Kind.TEXT:
        return True
    if kind is Kind.FLAG:
        return cell.strip().lower() in TRUE | FALSE
    return parse_number(cell, decimal) is not None


def _split_outside_brackets(line: str, delimiter: str) -> list[str]:
    """Cells of a line whose values hold the delimiter in brackets, as tensors print themselves."""
    # From the end on, so that each piece is looked at once: within brackets is what is followed by
    # a closing one first.
    cells: list[str] = []
    held: list[str] = []
    closes = False
    for piece in reversed(line.split(delimiter)):
        held.append(piece)
        bracket = _BRACKET.search(piece)
        closes = bracket.group() == ")" if bracket else closes
        if not closes:
            cells.append(delimiter.join(reversed(held)))
            held = []
    if held:
        cells.append(delimiter.join(reversed(held)))
    return cells[::-1]


def mend_last_line(line: bytes, layout: Layout, log: RepairLog, number: int) -> bytes | None:
    """What can be believed of a last line without newline: a whole line, or None for nothing.

    Only the missing newline tells that a line is cut: a last number ``655`` may be the beginning
    of ``65536``. Our own writer ends every line, so an unended one of its is cut. A line of
    another writer that has all its cells may be meant to be the last; its last cell is believed
    only where it cannot be the beginning of another one.
    """
    text = line.rstrip(b"\0\r ").decode("utf-8", errors="replace")
    if not text.strip():
        return None
    cells = split_cells(text, layout.delimiter)
    own = layout.header[: len(CANONICAL_NAMES)] == CANONICAL_NAMES
    step = None
    if (index := layout.step_index) is not None and index < len(cells) - 1:
        step = parse_step(cells[index], layout.decimal)
    if own or len(cells) != len(layout.names) or len(cells) < 2 or index == len(cells) - 1:
        log.note("torn-last-line", line=number, step=step)
        return None
    if cells[-1].strip().lower() in _WHOLE or text.endswith('"'):
        log.note("unterminated-last-line", line=number, step=step)
        return text.encode() + b"\n"
    log.note("doubtful-last-cell", line=number, step=step)
    return text[: text.rindex(layout.delimiter) + 1].encode() + b"\n"


_WHOLE = frozenset(("nan", "inf", "-inf", "+inf", "infinity", "-infinity", "true", "false"))
"""Cells that are no beginning of another one."""
