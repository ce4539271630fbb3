"""Records, and lines between them that bear no step: overflow notes, counters, validations.

What is said between two records belongs to the one that follows. A block is still read at once:
the lines between are looked up first, and put beside the records by their number.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from forensics.runlog.scanner.labelled import LabelledRecords
from forensics.runlog.scanner.near import matches_near
from forensics.runlog.scanner.rows import Cell, Rows

Dated = tuple[int, dict[str, Cell]]
"""A step, and cells of its row."""


class Interleaved:
    """Reads one log of records with other lines between them.

    Args:
        records: reads the records.
        rows: where they go.
        between: finds the other lines.
        needles: texts of which one is in each of those; a fast look.
        take: takes a match of ``between``; gives a row where the line is one of its own.
        cells: the cells that the next record has by what was taken since the one before.
    """

    def __init__(
        self,
        records: LabelledRecords,
        rows: Rows,
        *,
        between: re.Pattern[bytes],
        needles: Sequence[bytes],
        take: Callable[[re.Match[bytes]], Dated | None],
        cells: Callable[[], dict[str, Cell]],
    ) -> None:
        self._records = records
        self._rows = rows
        self._between = between
        self._needles = needles
        self._take = take
        self._cells = cells

    def read(self, block: bytes) -> None:
        """Read a block of whole records."""
        found = list(matches_near(self._between, block, self._needles))
        if found:
            self._read_with(block, found)
        elif self._records.any(block):
            self._records.read(block, _beside(0, self._cells()))

    def _read_with(self, block: bytes, found: Sequence[re.Match[bytes]]) -> None:
        starts = self._records.positions(block)
        beside: dict[int, Mapping[str, Cell]] = {}
        done, read, offset = 0, 0, 0
        for match in found:
            at = bisect_left(starts, match.start())
            if at > done:
                beside |= _beside(done, self._cells())
                done = at
            row = self._take(match)
            if row is None:
                continue
            step, cells = row
            if done > read and step == self._records.step_at(block, starts[done - 1]):
                beside[done - 1] = {**beside.get(done - 1, {}), **cells}
                continue
            # A row of a step that has no record: what is before it is read first.
            self._read_part(block[offset : match.start()], beside, read)
            beside = {}
            read, offset = done, match.start()
            self._rows.add(step, cells)
        if len(starts) > done:
            beside |= _beside(done, self._cells())
        self._read_part(block[offset:], beside, read)

    def _read_part(self, text: bytes, beside: Mapping[int, Mapping[str, Cell]], read: int) -> None:
        self._records.read(text, {row - read: cells for row, cells in beside.items()})


def _beside(row: int, cells: Mapping[str, Cell]) -> dict[int, Mapping[str, Cell]]:
    return {row: cells} if cells else {}
