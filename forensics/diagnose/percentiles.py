"""Percentiles of a long series, exactly and without a copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from forensics.diagnose.blocks import blocks
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray

_SAMPLE = 8192
_SIGMAS = 6.0
"""Standard errors of the sample's ranks that a bracket reaches to either side."""
_LARGEST = float(np.finfo(np.float64).max)


def finite_percentiles(
    values: FloatArray, percents: Sequence[float], among: BoolArray | None = None
) -> list[float] | None:
    """Percentiles of the finite values, as ``np.percentile`` gives them; None for fewer than 20.

    A sorted sample brackets each percentile; only what lies within a bracket is gathered and
    partitioned. Where a bracket misses, all is.

    Args:
        values: shape (N,).
        percents: from 0 to 100.
        among: which of them count, shape (N,); all by default.
    """
    chosen = _Chosen(values, among)
    count = sum(int(np.count_nonzero(np.isfinite(piece))) for piece in chosen.pieces())
    if count < 20:
        return None
    thinned = chosen.thinned()
    sample = np.sort(thinned[np.isfinite(thinned)])
    return [_percentile(chosen, count, percent, sample) for percent in percents]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Some values of a series, without a copy of them."""

    values: FloatArray
    among: BoolArray | None

    def pieces(self) -> Iterator[FloatArray]:
        """All of them, in order."""
        for rows in blocks(len(self.values)):
            yield self.values[rows] if self.among is None else self.values[rows][self.among[rows]]

    def thinned(self) -> FloatArray:
        """Some of them, evenly from all of the series."""
        every = slice(None, None, max(1, len(self.values) // _SAMPLE))
        return self.values[every] if self.among is None else self.values[every][self.among[every]]


def _percentile(chosen: _Chosen, count: int, percent: float, sample: FloatArray) -> float:
    place = (count - 1) * (percent / 100)
    low = int(place)
    high = min(low + 1, count - 1)
    a, b = _in_order(chosen, low, high, *_bracket(sample, percent / 100))
    share = place - low
    return a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share)


def _bracket(sample: FloatArray, rank: float) -> tuple[float, float]:
    """Values between which the value of this rank lies almost surely."""
    size = len(sample)
    if size == 0:
        return -_LARGEST, _LARGEST
    slack = _SIGMAS * np.sqrt(size * rank * (1 - rank)) + _SIGMAS
    low, high = int(size * rank - slack), int(size * rank + slack)
    return (
        float(sample[low]) if low >= 0 else -_LARGEST,
        float(sample[high]) if high < size else _LARGEST,
    )


def _in_order(
    chosen: _Chosen, low: int, high: int, least: float, most: float
) -> tuple[float, float]:
    """The finite values of two ranks, looked for between ``least`` and ``most``."""
    below, inside = 0, []
    for piece in chosen.pieces():
        below += int(np.count_nonzero((piece < least) & (piece >= -_LARGEST)))
        inside.append(piece[(piece >= least) & (piece <= most)])
    near = np.concatenate(inside)
    if not below <= low <= high < below + len(near):
        return _in_order(chosen, low, high, -_LARGEST, _LARGEST)
    near.partition((low - below, high - below))
    return float(near[low - below]), float(near[high - below])
