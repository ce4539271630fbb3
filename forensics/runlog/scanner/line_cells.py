"""Named cells of many lines as columns: one search a cell, no Python object a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from forensics.runlog.scanner.numbers import NUMBER, floats
from forensics.runlog.steps import BoolArray, FloatArray

Cells = tuple[FloatArray, BoolArray | None]
"""Values of one column, and where there are some (None for all)."""
Columns = dict[str, Cells]
"""The same by column."""


class LineCells:
    r"""Finds ``name: number`` in lines.

    Args:
        names: name in the line → column.
        before: fragment of the one character before a name, such as ``[\s,]``.
        equals: what stands between name and number.
    """

    def __init__(self, names: Mapping[bytes, str], before: bytes, equals: bytes = b": ") -> None:
        self._find = {column: _search(name + equals, before) for name, column in names.items()}

    def columns(self, lines: Sequence[bytes]) -> dict[str, tuple[FloatArray, BoolArray | None]]:
        """Each column that any line has: values, and where there are some (None for all)."""
        found: dict[str, tuple[FloatArray, BoolArray | None]] = {}
        for column, find in self._find.items():
            cells = [match.group(1) if (match := find(line)) else b"" for line in lines]
            if any(cells):
                found[column] = floats(cells)
        return found


def _search(text: bytes, before: bytes) -> Callable[[bytes], re.Match[bytes] | None]:
    """The search for a name and its number; literal first, which is 5 times as fast."""
    literal = re.escape(text)
    # What goes on behind the number is another line that was torn into this one.
    return re.compile(
        literal + rb"(?<=" + before + literal + rb")(" + NUMBER + rb")(?![\w-]|\.\d)"
    ).search
