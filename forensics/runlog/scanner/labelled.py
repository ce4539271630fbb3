"""Records whose cells name themselves: ``step 7 | loss: 2.1 | grad norm: 0.3``.

Versions and options of a trainer add, drop and move such cells, so no pattern is written for them:
the cells that a file has are learned from its first record, and one pattern then reads them all at
once. A record that has others widens it; what does not fit at all is read cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from forensics.frozen import dataclass
from forensics.runlog.scanner.numbers import NUMBER, count, number
from forensics.runlog.scanner.rows import Cell, Rows

_MOST_KEYS = 80
"""Cells a record; text that goes on for longer is none."""
_MOST_LEARNED = 24
"""Times a file may widen the pattern before its records are read one by one."""
_WORTHWHILE = 400
"""Bytes of text from which on it pays to take records together."""

Name = Callable[[str], str | None]


@dataclass(frozen=True)
class Layout:
    r"""How the records of a format are written, as fragments of patterns.

    Attributes:
        start: what begins a record; its groups are named as columns, ``step`` is one of them.
        gap: what separates two cells.
        key: the name of a cell, without group.
        equals: what stands between a name and its value.
        value: any value, without group; it may be empty after a number.
        column: the column that a name is; None for what is passed over.
        mark: a text that is in every ``start`` and hardly anywhere else, by which they are counted.
    """

    start: bytes
    gap: bytes
    key: bytes
    equals: bytes
    value: bytes
    column: Name
    mark: bytes


class LabelledRecords:
    """Reads the records of one file into rows.

    Args:
        layout: how they are written.
        rows: where to append.
    """

    def __init__(self, layout: Layout, rows: Rows) -> None:
        self._layout = layout
        self._rows = rows
        self._start = re.compile(layout.start)
        self._cell = re.compile(
            rb"%b(%b)%b(%b)" % (layout.gap, layout.key, layout.equals, layout.value)
        )
        self._keys: list[bytes] = []
        self._learned = 0
        self._pattern = self._start
        self._names = tuple(self._start.groupindex)
        self._last = 0

    def starts(self, text: bytes) -> int:
        """How many records begin in a text."""
        return len(self._start.findall(text))

    def any(self, text: bytes) -> bool:
        """Does any record begin in a text?"""
        return self._start.search(text) is not None

    def positions(self, text: bytes) -> list[int]:
        """Where the records of a text begin."""
        return [match.start() for match in self._start.finditer(text)]

    def step_at(self, text: bytes, at: int) -> int:
        """Step of the record that begins somewhere in a text; -1 where none does."""
        match = self._start.match(text, at)
        return count(match["step"]) if match else -1

    @property
    def last_step(self) -> int:
        """Step of the record that was read last; 0 before the first one."""
        return self._last

    def read(self, text: bytes, beside: Mapping[int, Mapping[str, Cell]] | None = None) -> int:
        """Append the records of a text, which holds whole ones.

        Args:
            text: clean text.
            beside: cells that a record has beside its own, or instead of them; by its number in
                the text, from 0.

        Returns:
            How many were appended.
        """
        beside = beside or {}
        found = self._together(text) if len(text) >= _WORTHWHILE else None
        if found is None:
            return self._one_by_one(text, beside)
        names = self._names
        if found:
            self._last = count(found[-1][names.index("step")])
        if beside:
            names, found = _widened(names, found, beside)
        return self._rows.take(names, found, len(text))

    def _together(self, text: bytes) -> list[tuple[bytes, ...]] | None:
        """The cells of all records of a text; None where one does not fit the pattern."""
        most, there = text.count(self._layout.mark), -1
        while self._learned < _MOST_LEARNED:
            found: list[tuple[bytes, ...]] = self._pattern.findall(text) if self._keys else []
            if len(found) < most and there < 0:
                there = self.starts(text)
            if len(found) in (most, there):
                return found if self._pattern.groups > 1 else None
            if not self._learn(text):
                return None
            self._learned += 1
        return None

    def _learn(self, text: bytes) -> bool:
        """Widen the pattern by the first record that it does not fit; False where none does."""
        for match in self._start.finditer(text):
            if self._keys and self._pattern.match(text, match.start()):
                continue
            after = self._start.search(text, match.end())
            end = after.start() if after else len(text)
            keys = [key for key, _ in self._cells(text, match.end(), end)]
            merged = _merged(self._keys, keys)
            if merged == self._keys or len(merged) > _MOST_KEYS:
                return False
            self._keys = merged
            self._pattern = self._compiled()
            return True
        return False

    def _compiled(self) -> re.Pattern[bytes]:
        """One pattern for all cells that are known, each of which a record may lack."""
        layout, parts = self._layout, [self._layout.start]
        names = list(self._start.groupindex)
        for key in self._keys:
            name = layout.column(key.decode("utf-8", "replace"))
            value = layout.value
            if name is not None and name not in names:
                names.append(name)
                value = rb"(%b)(?:%b|)" % (NUMBER, layout.value)
            # Atomic: a number that gave back its last digits would be another number.
            cell = layout.gap + re.escape(key) + layout.equals + value
            parts.append(rb"(?>%b|)" % cell)
        self._names = tuple(names)
        other = layout.gap + layout.key + layout.equals
        return re.compile(b"".join(parts) + rb"(?!%b)" % other)

    def _cells(self, text: bytes, at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Names and values of the record from ``at``; the next one begins at ``end``."""
        for _ in range(_MOST_KEYS):
            match = self._cell.match(text, at) if at < end else None
            if match is None or match.end() == at:
                return
            yield match.group(1), match.group(2)
            at = match.end()

    def _one_by_one(self, text: bytes, beside: Mapping[int, Mapping[str, Cell]]) -> int:
        done = 0
        starts = list(self._start.finditer(text))
        ends = [*(after.start() for after in starts[1:]), len(text)]
        for done, (match, end) in enumerate(zip(starts, ends, strict=False), 1):
            cells: dict[str, Cell] = {
                name: number(cell)
                for name, cell in match.groupdict().items()
                if cell and name != "step"
            }
            for key, value in self._cells(text, match.end(), end):
                name = self._layout.column(key.decode("utf-8", "replace"))
                if name is not None and name not in cells:
                    cells[name] = leading_number(value)
            self._last = count(match["step"])
            self._rows.add(self._last, {**cells, **beside.get(done - 1, {})})
        return done


def _widened(
    names: tuple[str, ...],
    found: Sequence[tuple[bytes, ...]],
    beside: Mapping[int, Mapping[str, Cell]],
) -> tuple[tuple[str, ...], list[tuple[bytes, ...]]]:
    """Cells of records with those beside them: further columns, and values that go before."""
    further = dict.fromkeys(name for cells in beside.values() for name in cells)
    names = (*names, *(name for name in further if name not in names))
    rest = (b"",) * (len(names) - len(found[0])) if found else ()
    rows = [(*cells, *rest) for cells in found]
    for row, cells in beside.items():
        merged = dict(zip(names, rows[row], strict=True))
        merged |= {name: _written(cell) for name, cell in cells.items()}
        rows[row] = tuple(merged.values())
    return names, rows


def _written(cell: Cell) -> bytes:
    if isinstance(cell, bool):
        return b"1" if cell else b"0"
    return b"" if cell is None else str(cell).encode()


_LEADING = re.compile(rb"\s*(" + NUMBER + rb")")


def leading_number(value: bytes) -> float | None:
    """The number that a value begins with; None where it begins with none."""
    match = _LEADING.match(value)
    return number(match.group(1)) if match else None


def _merged(known: Sequence[bytes], new: Sequence[bytes]) -> list[bytes]:
    """Both orders of keys in one: a new key comes after the one that it follows."""
    merged = list(known)
    if new and new[0] not in merged:
        merged.insert(0, new[0])
    for before, key in pairwise(new):
        if key not in merged:
            merged.insert(merged.index(before) + 1, key)
    return merged
