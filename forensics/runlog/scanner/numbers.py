"""Numbers in the lines of a log: fragments of patterns, and whole columns of matches as arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from forensics.runlog.csv_reader.cells import is_absent, parse_number
from forensics.runlog.csv_reader.fast import parse_fast
from forensics.runlog.csv_reader.header import Layout
from forensics.runlog.schema import Kind
from forensics.runlog.steps import BoolArray, FloatArray, IntArray, all_present

NUMBER = (
    rb"[-+]?(?:\d[\d.,]{0,40}(?<![.,])(?:[eE][-+]?\d{1,4}|)|\.\d{1,40}(?:[eE][-+]?\d{1,4}|)"
    rb"|[nN][aA][nN]|[iI][nN][fF](?:inity|))"
)
"""A number in any spelling, thousands separators and NaN included; a fragment without group.

Looser than a number is, as a strict pattern takes twice the time; cells are parsed strictly. No
longer than numbers are: else a megabyte of digits would be searched from each of them to its end.
``(?:…|)`` is ``(?:…)?`` without the bookkeeping of a repeat, which takes as long as the digits do.
"""
COUNT = rb"\d[\d,]{0,24}(?<!,)"
"""A count such as a step, with or without thousands separators; a fragment without group."""


_ONE_CELL = Layout(("cell",), (Kind.FLOAT,), ("cell",), ";")
_WORTHWHILE = 64
"""Cells from which on it pays to parse them together."""
_GROUPED = rb"\d{1,3}(?>,\d{3})*+(?>\.\d+)?+"
_THOUSANDS = re.compile(_GROUPED + rb"(?>\n" + _GROUPED + rb")*+")
"""A whole column of numbers with separators for thousands, and nothing doubtful among them."""


def number(text: bytes | str) -> float | None:
    """One number in whatever spelling; None where it is none or says that nothing is there."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    return None if is_absent(text) else parse_number(text.strip())


def quick(text: bytes) -> float | None:
    """The same for a matched ``NUMBER``, which is plain nearly always."""
    try:
        return float(text)
    except ValueError:
        return number(text)


def count(text: bytes) -> int:
    """A matched ``COUNT``; one that fits no 64 bits is 2^63 - 1."""
    digits = text.replace(b",", b"")
    return min(int(digits), 2**63 - 1) if len(digits) < 20 else 2**63 - 1


def counts(cells: Sequence[bytes]) -> IntArray:
    """Matched ``COUNT`` cells as steps, shape (cells,)."""
    try:
        return np.array(list(map(int, cells)), dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array([count(cell) for cell in cells], dtype=np.int64)


def floats(cells: Sequence[bytes]) -> tuple[FloatArray, BoolArray | None]:
    """Matched cells as float64, and where there was one.

    Returns:
        Values of shape (cells,), NaN where nothing was written; and a mask of the same shape, or
        None where every cell holds a number.
    """
    parsed = _parsed(cells) if len(cells) >= _WORTHWHILE else None
    if parsed is not None:
        return parsed
    try:
        return np.array(list(map(float, cells)), dtype=np.float64), None
    except ValueError:
        pass
    text = b"\n".join(cells)
    if b"," in text and _THOUSANDS.fullmatch(text):
        plain = text.replace(b",", b"").split(b"\n")
        return np.array(list(map(float, plain)), dtype=np.float64), None
    found = [_loose(cell) for cell in cells]
    values = np.array([np.nan if v is None else v for v in found], dtype=np.float64)
    present = np.array([v is not None for v in found], dtype=bool)
    return values, None if present.all() else present


def _parsed(cells: Sequence[bytes]) -> tuple[FloatArray, BoolArray | None] | None:
    """The same by the CSV parser, four times as fast; None where a cell is not plain."""
    text = b"\n".join(cells) + b"\n"
    if b"\n\n" in text or text.startswith(b"\n"):  # an empty line would be no cell
        text = b"\n".join(cell or b"NA" for cell in cells) + b"\n"
    pieces = parse_fast(text, _ONE_CELL)
    if pieces is None or sum(len(piece["cell"].values) for piece in pieces) != len(cells):
        return None
    parts = [piece["cell"] for piece in pieces]
    masks = [all_present(len(p.values)) if p.present is None else p.present for p in parts]
    gaps = any(part.present is not None for part in parts)
    return np.concatenate([p.values for p in parts]), np.concatenate(masks) if gaps else None


def _loose(cell: bytes) -> float | None:
    if not cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return number(cell)


def matches(pattern: re.Pattern[bytes], block: bytes) -> dict[str, list[bytes]]:
    """What the named groups of a pattern hold, match by match, in a block of text.

    Every match gives one cell a group; of a group that took no part it is empty.
    ``Rows.match`` does the same and fills a table, four times as fast.
    """
    names = list(pattern.groupindex)
    assert pattern.groups == len(names), "every group of the pattern needs a name"
    found = pattern.findall(block)
    if len(names) == 1:
        return {names[0]: found}
    columns = zip(*found, strict=True) if found else ((),) * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}
