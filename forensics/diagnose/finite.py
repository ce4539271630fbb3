"""The finite values of a series, and the rows they are from, without a second copy of either."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, overload

import numpy as np

from forensics.diagnose.blocks import blocks, rows_where
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows of a table, ascending, held as those that are left out: next to none, mostly.

    Indexed like the array of the rows, ``np.flatnonzero(mask)``, which ten million rows make 80 MB.

    Attributes:
        total: rows of the table.
        left_out: the other rows, ascending.
    """

    total: int
    left_out: IntArray

    @classmethod
    def of(cls, mask: BoolArray) -> KeptRows:
        """The rows where a mask is True."""
        return cls(len(mask), rows_where(len(mask), lambda rows: ~mask[rows]))

    def __len__(self) -> int:
        return self.total - len(self.left_out)

    @property
    def complete(self) -> bool:
        """Are all rows of the table kept?"""
        return len(self.left_out) == 0

    @cached_property
    def _kept_before(self) -> IntArray:
        """How many kept rows come before each that is left out."""
        return self.left_out - np.arange(len(self.left_out))

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: IntArray | slice) -> IntArray: ...

    def __getitem__(self, index: int | IntArray | slice) -> int | IntArray:
        """The row of the kept row at an index (from 0 on), or of several."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        if isinstance(index, np.ndarray):
            skipped = np.searchsorted(self._kept_before, index, side="right")
            return np.asarray(index + skipped, dtype=np.int64)
        at = range(len(self))[index]  # counts from the end where it is negative, or raises
        return at + int(np.searchsorted(self._kept_before, at, side="right"))

    def before(self, rows: Any) -> Any:
        """How many kept rows come before each row: the index of the first at or after it."""
        return rows - np.searchsorted(self.left_out, rows)

    def of_column(self, values: Any) -> Any:
        """The kept rows' values of a column: the column itself where all are kept."""
        if self.complete:
            return values
        mask = np.ones(self.total, dtype=bool)
        mask[self.left_out] = False
        return values[mask]


@dataclass(frozen=True, eq=False)
class FiniteSeries:
    """The finite values of a series.

    Attributes:
        rows: the rows they are from.
        values: the values, shape (len(rows),); the series itself where all are finite.
    """

    rows: KeptRows
    values: FloatArray

    @classmethod
    def of(cls, series: FloatArray) -> FiniteSeries:
        """The finite values of a series of shape (rows,)."""
        left_out = rows_where(len(series), lambda rows: ~np.isfinite(series[rows]))
        rows = KeptRows(len(series), left_out)
        return cls(rows, rows.of_column(series))

    @classmethod
    def mapped(
        cls, series: FloatArray, kept: BoolArray, function: Callable[[FloatArray], FloatArray]
    ) -> FiniteSeries:
        """``function`` of the values where a mask is True; it must be finite there."""
        rows = KeptRows.of(kept)
        values = np.empty(len(rows))
        end = 0
        for at in blocks(len(series)):
            piece = series[at] if rows.complete else series[at][kept[at]]
            values[end : end + len(piece)] = function(piece)
            end += len(piece)
        return cls(rows, values)

    def __len__(self) -> int:
        return len(self.values)
