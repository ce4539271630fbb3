"""A whole step table as ``steps.csv``: what ``read_steps`` reads back value for value."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import numpy as np

from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import Column, StepTable

_ROWS = 1 << 16
_SPELLED = {"True": "1", "False": "0"}
_UNBROKEN = str.maketrans({"\n": " ", "\r": " ", "\0": None})
_FORMULA_STARTS = ("=", "+", "-", "@", "\t")
"""What makes a spreadsheet compute a cell instead of showing it."""


def write_table(
    table: StepTable, file: TextIO, *, written: Callable[[int], object] | None = None
) -> None:
    """Write a table: the canonical columns in their order, then the others.

    Floats are written by ``repr``, so that they come back bit for bit; what is absent is an
    empty cell, a canonical column that the table lacks is empty throughout. Text is a stranger's:
    what a terminal or a spreadsheet would act on is written so that it does not.

    Args:
        table: the rows.
        file: opened for text with ``newline=""``.
        written: told how many rows more are written.
    """
    others = [name for name in table if name not in CANONICAL_NAMES]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_harmless(name) for name in (*CANONICAL_NAMES, *others)])
    for start in range(0, len(table), _ROWS):
        part = slice(start, start + _ROWS)
        size = len(table.step[part])
        cells = [
            _cells(table.columns[name].take(part)) if name in table else [""] * size
            for name in (*CANONICAL_NAMES, *others)
        ]
        writer.writerows(zip(*cells, strict=True))
        if written is not None:
            written(size)


def _cells(column: Column) -> list[str]:
    """The cells of some rows of a column, as they are written."""
    if column.categories:
        return [_harmless(str(text)) for text in column.texts()]
    written = list(_spelled(column.values))
    if column.present.all():
        return written
    return [cell if there else "" for cell, there in zip(written, column.present, strict=True)]


def _harmless(text: str) -> str:
    """A text cell: one line, control characters written out, a formula marked as text."""
    text = text.translate(_UNBROKEN)
    if not text.isprintable():
        text = "".join(map(_written_out, text))
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _is_number(text) else text


def _written_out(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode("ascii")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _spelled(values: np.ndarray[Any, Any]) -> Iterator[str]:
    if values.dtype == bool:
        return (_SPELLED[repr(value)] for value in values.tolist())
    return map(repr, values.tolist())
