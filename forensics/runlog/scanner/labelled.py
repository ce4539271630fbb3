"""Records whose cells name themselves: ``step 7 | loss: 2.1 | grad norm: 0.3``.

Versions and options of a trainer add, drop and move such cells, so no pattern is written for them:
the cells that a file has are learned from its first record, and one pattern then reads them all at
once. A record that has others widens it; what does not fit at all is read cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    """

    start: bytes
    gap: bytes
    key: bytes
    equals: bytes
    value: bytes
    column: Name


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
        self._last = 0

    def starts(self, text: bytes) -> int:
        """How many records begin in a text."""
        return sum(1 for _ in self._start.finditer(text))

    def end_of_first(self, text: bytes) -> int:
        """Where the line of the first record ends; the length of the text where it is the last."""
        match = self._start.search(text)
        end = text.find(b"\n", match.end()) if match else -1
        return end if end >= 0 else len(text)

    @property
    def last_step(self) -> int:
        """Step of the record that was read last; 0 before the first one."""
        return self._last

    def read(self, text: bytes, first: Mapping[str, Cell] | None = None) -> int:
        """Append the records of a text, which holds whole ones.

        Args:
            text: clean text.
            first: cells that the first record has beside its own.

        Returns:
            How many were appended.
        """
        if first or len(text) < _WORTHWHILE:
            return self._one_by_one(text, first or {})
        found = self._together(text)
        if found is None:
            return self._one_by_one(text, {})
        if found:
            self._last = count(found[-1][self._pattern.groupindex["step"] - 1])
        return self._rows.take(self._pattern, found, len(text))

    def _together(self, text: bytes) -> list[tuple[bytes, ...]] | None:
        """The cells of all records of a text; None where one does not fit the pattern."""
        there = self.starts(text)
        while self._learned < _MOST_LEARNED:
            found: list[tuple[bytes, ...]] = self._pattern.findall(text) if self._keys else []
            if len(found) == there:
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
            keys = [key for key, _ in self._cells(text, match.end())]
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
        taken = set(self._start.groupindex)
        for key in self._keys:
            name = layout.column(key.decode("utf-8", "replace"))
            value = layout.value
            if name is not None and name not in taken:
                taken.add(name)
                value = rb"(?P<%b>%b)(?:%b)?" % (name.encode(), NUMBER, layout.value)
            # Atomic: a number that gave back its last digits would be another number.
            cell = layout.gap + re.escape(key) + layout.equals + value
            parts.append(rb"(?>%b)?+" % cell)
        other = layout.gap + layout.key + layout.equals
        return re.compile(b"".join(parts) + rb"(?!%b)" % other)

    def _cells(self, text: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
        for _ in range(_MOST_KEYS):
            match = self._cell.match(text, at)
            if match is None or match.end() == at:
                return
            yield match.group(1), match.group(2)
            at = match.end()

    def _one_by_one(self, text: bytes, first: Mapping[str, Cell]) -> int:
        done = 0
        for match in self._start.finditer(text):
            cells: dict[str, Cell] = {
                name: number(cell)
                for name, cell in match.groupdict().items()
                if cell and name != "step"
            }
            for key, value in self._cells(text, match.end()):
                name = self._layout.column(key.decode("utf-8", "replace"))
                if name is not None and name not in cells:
                    cells[name] = leading_number(value)
            self._last = count(match["step"])
            self._rows.add(self._last, {**cells, **(first if not done else {})})
            done += 1
        return done


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
