"""Of a log with more rows than memory is meant to hold, the rows that tell of the training.

It is then read as if the loop had logged every k-th step, and beside these each step that stands
out: where a value turns non-finite or is so again, a step is skipped, the loss scale changes, a
loss or a norm leaps, the counter goes back. What is left out is like its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.runlog.csv_reader.builder import TableBuilder
from forensics.runlog.scanner.joining import piece_of
from forensics.runlog.steps import BoolArray, Column, IntArray

_STATES = frozenset(("scaler_scale",))
"""Floats that stay as they are for long: each change of them tells."""
_LEAPING = frozenset(("loss", "val_loss", "grad_l2_pre_clip", "grad_l2_post_clip"))
_BESIDE = frozenset(("step", "covered_steps", "epoch"))
_LEAP = 5.0
"""Standard deviations of its neighbours by which a value stands out; 1 of 2 million of noise."""
_NEIGHBOURS = 256
_STEADY = 8
"""Rows per change, at least, of a column whose changes tell."""
_WORTHWHILE = 0.75
"""Share of the rows that may remain; if more do, they are not alike, and room is made."""
_LOOKED_AT = 1 << 16
_MOST_RANKS = 4096
"""Rows of one step; more in a row are no ranks but a counter that stands still."""


class Thinning:
    """What is left out of one log.

    Args:
        most: rows from which on some are left out; None for never.

    Attributes:
        stride: of so many steps one row is kept; 1 while all are.
        dropped: rows left out so far.
    """

    def __init__(self, most: int | None) -> None:
        self.stride = 1
        self.dropped = 0
        self._most = most

    def due(self, rows: int) -> bool:
        """Are there too many rows?"""
        return self._most is not None and rows > self._most

    def thinned(self, builder: TableBuilder) -> TableBuilder:
        """A builder with the rows that remain; at twice the stride where the old one is no help."""
        columns = builder.finish()
        step = columns["step"].values
        most = self._most or len(step)
        if self.stride == 1:
            self.stride = _usual_distance(step[-_LOOKED_AT:])
        rows = telling_rows(columns, self.stride)
        if np.count_nonzero(rows) > most // 2:
            self.stride *= 2
            rows = telling_rows(columns, self.stride)
        if np.count_nonzero(rows) > _WORTHWHILE * len(step):
            self._most = 2 * most
        return self._kept(columns, rows)

    def settled(self, builder: TableBuilder) -> TableBuilder:
        """A builder with the rows that remain at the stride, those that came last as well."""
        if not self.dropped:
            return builder
        columns = builder.finish()
        return self._kept(columns, telling_rows(columns, self.stride))

    def _kept(self, columns: Mapping[str, Column], rows: BoolArray) -> TableBuilder:
        self.dropped += len(rows) - int(np.count_nonzero(rows))
        builder = TableBuilder(self._most or 0)
        builder.append({name: piece_of(column.take(rows)) for name, column in columns.items()})
        return builder


def telling_rows(columns: Mapping[str, Column], stride: int) -> BoolArray:
    """Which rows to keep, shape (rows,).

    Of each column the last cell in every ``stride`` steps, the last one of them that is not
    finite, and whatever stands out; rows of one step stay together.

    Args:
        columns: in the order of the file, ``step`` among them.
        stride: in steps.
    """
    step: IntArray = columns["step"].values
    stretch = step // stride
    keep = np.zeros(len(step), dtype=bool)
    keep[[0, -1]] = True
    keep |= _beside_changes(np.cumsum(np.concatenate(([False], step[1:] < step[:-1]))))
    for name, column in columns.items():
        if name in _BESIDE:
            continue
        keep |= _last_of_each(stretch, column.present)
        keep |= _standing_out(name, column, stretch)
    return _whole_steps(keep, step)


def _standing_out(name: str, column: Column, stretch: IntArray) -> BoolArray:
    values = column.values
    if values.dtype.kind != "f":
        return _last_of_each(stretch, values != 0) | _beside_changes(values, steady=True)
    bad = column.present & ~np.isfinite(values)
    keep = _last_of_each(stretch, bad)
    keep |= _beside_changes(bad.view(np.int8) + column.present, steady=True)
    if name in _STATES:
        keep |= _beside_changes(np.where(column.present, np.nan_to_num(values), -1.0), steady=True)
    if name in _LEAPING:
        keep |= leaps(values, column.present & ~bad)
    return keep


def leaps(values: NDArray[np.float64], there: BoolArray) -> BoolArray:
    """Where a value is far from those around it, shape (rows,)."""
    found = np.zeros(len(values), dtype=bool)
    whole = len(values) // _NEIGHBOURS * _NEIGHBOURS
    for part, width in ((slice(0, whole), _NEIGHBOURS), (slice(whole, None), len(values) - whole)):
        if not width or not len(values[part]):
            continue
        ok = there[part].reshape(-1, width)
        with np.errstate(all="ignore"):
            x = np.where(ok, values[part].reshape(-1, width), 0.0)
            count = np.maximum(ok.sum(axis=1, keepdims=True), 1)
            off = np.where(ok, x - x.sum(axis=1, keepdims=True) / count, 0.0)
            spread = np.sqrt((off * off).sum(axis=1, keepdims=True) / count)
            found[part] = (np.abs(off) > _LEAP * spread).ravel()
    return found


def _beside_changes(state: NDArray[Any], *, steady: bool = False) -> BoolArray:
    """The rows on both sides of each change; ``steady``: none where it changes all the time."""
    keep = np.zeros(len(state), dtype=bool)
    changed = state[1:] != state[:-1]
    if steady and np.count_nonzero(changed) * _STEADY > len(state):
        return keep
    keep[1:] |= changed
    keep[:-1] |= changed
    return keep


def _last_of_each(stretch: IntArray, among: BoolArray) -> BoolArray:
    """The last row of every stretch among some rows."""
    keep = np.zeros(len(stretch), dtype=bool)
    rows = np.flatnonzero(among)
    if len(rows):
        own = stretch[rows]
        keep[rows[np.append(own[1:] != own[:-1], True)]] = True
    return keep


def _whole_steps(keep: BoolArray, step: IntArray) -> BoolArray:
    """All rows of a step of which one is kept: ranks, or parts of a record."""
    starts = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    if len(starts) == len(step):
        return keep
    sizes = np.diff(starts, append=len(step))
    kept = np.logical_or.reduceat(keep, starts) & (sizes <= _MOST_RANKS)
    return keep | np.repeat(kept, sizes)


def _usual_distance(step: IntArray) -> int:
    ahead = np.diff(step)
    ahead = ahead[ahead > 0]
    return max(int(np.median(ahead)), 1) if len(ahead) else 1
