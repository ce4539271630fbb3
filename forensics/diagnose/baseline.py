"""What was normal just before each value of a series, from its own past. No NaN blinds it.

The level and the spread are medians over the 128 values before, renewed every 64 values: medians
are most of what a detector costs. Everything looks backwards and is aligned at the start, so that
appending rows changes nothing that was said before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.finite import FiniteSeries, KeptRows
from forensics.diagnose.series import MAD_TO_SIGMA, sorted_medians
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray

WINDOW = 128
"""Past finite values a baseline is made of (a spike of 1 in 128 cannot move its median)."""
HOP = 64
"""Values after which the baseline is renewed."""
HEAD = WINDOW + HOP
"""Up to here the baseline is renewed at every value, so that short logs are judged too."""
MIN_PAST = 8
"""Fewer past values than this say nothing about the noise."""
_CHUNK = 1 << 9


@dataclass(frozen=True, eq=False)
class Baseline:
    """The baseline of the finite values of a series.

    Attributes:
        series: the finite values, F of them.
        head: level and spread before each of the first up to 192 values, shape (2, ≤ 192); NaN for
            the first 8.
        hops: level and spread for each further 64 values, shape (2, hops).
    """

    series: FiniteSeries
    head: FloatArray
    hops: FloatArray

    @property
    def rows(self) -> KeptRows:
        """The rows of the finite values."""
        return self.series.rows

    @property
    def values(self) -> FloatArray:
        """The finite values, shape (F,)."""
        return self.series.values

    def _at(self, index: IntArray, which: int) -> FloatArray:
        inside = np.minimum(index, self.head.shape[1] - 1)
        found = self.head[which][inside] if self.head.size else np.full(len(index), np.nan)
        later = index >= HEAD
        if later.any():
            found[later] = self.hops[which][(index[later] - HEAD) // HOP]
        return found

    def center(self, index: IntArray) -> FloatArray:
        """Median of the up to 128 values before those at ``index``, shape of ``index``."""
        return self._at(index, 0)

    def spread(self, index: IntArray) -> FloatArray:
        """Robust standard deviation of the same values, never below the floor."""
        return self._at(index, 1)

    def above(self, z: float) -> IntArray:
        """Indices of the values more than ``z`` spreads above the level, ascending."""
        limits = self.head[0] + z * self.head[1]
        found = np.flatnonzero(self.values[:HEAD] > limits)
        return np.concatenate(
            (found, above_blocks(self.values, HEAD, HOP, self.hops[0] + z * self.hops[1]))
        )


def above_blocks(values: FloatArray, start: int, size: int, limits: FloatArray) -> IntArray:
    """Indices of the values from ``start`` on that exceed the limit of their block of ``size``."""
    whole = start + (len(values) - start) // size * size
    if whole <= start:
        last = values[start:] > limits[0] if len(values) > start else np.zeros(0, dtype=bool)
        return start + np.flatnonzero(last)
    blocks = values[start:whole].reshape(-1, size)
    found = start + np.flatnonzero(blocks > limits[: len(blocks), None])
    rest = np.flatnonzero(values[whole:] > limits[-1]) if len(values) > whole else found[:0]
    return np.concatenate((found, whole + rest))


def baseline(series: FiniteSeries, floor: float = 1e-3) -> Baseline:
    """The running baseline of a series.

    Args:
        series: its finite values.
        floor: least spread, so that a flat past does not turn rounding into a spike.
    """
    kept = series.values
    head = np.full((2, min(len(kept), HEAD)), np.nan)
    if len(kept) > MIN_PAST:
        head[:, MIN_PAST:] = _head_levels(kept[:HEAD])
    hops = _hop_levels(kept) if len(kept) > HEAD else np.empty((2, 0))
    head[1], hops[1] = np.maximum(head[1], floor), np.maximum(hops[1], floor)
    return Baseline(series, head, hops)


def _head_levels(kept: FloatArray) -> FloatArray:
    """Median and sigma of the up to 128 values before each of the values from the ninth on."""
    padded = np.concatenate((np.full(WINDOW, np.nan), kept[:-1]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[MIN_PAST:]
    return levels(np.array(windows), np.minimum(np.arange(MIN_PAST, len(kept)), WINDOW))


def _hop_levels(kept: FloatArray) -> FloatArray:
    """Median and sigma of windows of 128 that start at 64, 128 …: one for each 64 values.

    In float32, whose rounding of 1e-7 is far below any noise: half the time and memory.
    """
    windows = np.lib.stride_tricks.sliding_window_view(kept, WINDOW)[HOP : len(kept) - WINDOW : HOP]
    found = np.empty((2, len(windows)))
    for start in range(0, len(windows), _CHUNK):  # bounds the copies that are sorted
        part = slice(start, start + _CHUNK)
        found[:, part] = levels(windows[part].astype(np.float32), WINDOW)
    return found


def levels(windows: NDArray[Any], counts: IntArray | int) -> FloatArray:
    """Median and robust sigma of each window; shape (2, windows).

    Args:
        windows: shape (windows, size); NaN where there is no value. What is in it is lost.
        counts: how many values each window has, at least 1; one number where all have as many.
    """
    middle = sorted_medians(windows, counts)
    windows -= middle[:, None].astype(windows.dtype)
    spread = sorted_medians(np.abs(windows, out=windows), counts)
    return np.stack((middle, MAD_TO_SIGMA * spread))
