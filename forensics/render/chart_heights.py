"""Where a value stands in a chart, and which heights get a tick.

Charts are drawn on plain axes of these heights. A logarithmic axis of matplotlib's own raises
OverflowError on a million points of which many are 0 or less; a plain one of logarithms cannot.
"""

from __future__ import annotations

import math

import numpy as np

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray

_DECADES = ((1.5, (1, 2, 5)), (3.0, (1, 3)))
"""Ranges in decades below which more than the powers of 10 get ticks, and which numbers."""

_STRIDES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 100, 150, 200)
"""Decades from tick to tick."""
_LARGEST = 308
"""Power of 10 of the largest number there is."""


@dataclass(frozen=True)
class Heights:
    """The heights of one axis."""

    axis: Axis

    def of(self, values: FloatArray | float) -> FloatArray:
        """Height of each value, any shape; NaN where the axis has no place for it."""
        given = np.asarray(values, dtype=np.float64)
        with np.errstate(all="ignore"):
            match self.axis.layout:
                case Layout.LOG:
                    found = np.log10(np.where(given > 0, given, np.nan))
                case Layout.LOG2:
                    found = np.log2(np.where(given > 0, given, np.nan))
                case Layout.SYMLOG:
                    found = np.sign(given) * np.log10(1 + np.abs(given) / self.axis.linear_to)
                case _:
                    found = given
        return np.where(np.isfinite(found), found, np.nan)

    def ticks(self, low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
        """About ``most`` ticks between two heights: height and text of each, ascending."""
        match self.axis.layout:
            case Layout.LOG:
                return _log_ticks(low, high, most)
            case Layout.LOG2:
                return _log2_ticks(low, high, most)
            case Layout.SYMLOG:
                return self._symlog_ticks(low, high, most)
            case _:
                return _linear_ticks(low, high, most)

    def _symlog_ticks(self, low: float, high: float, most: int) -> list[tuple[float, str]]:
        top = math.floor(math.log10(self.axis.linear_to) + max(abs(low), abs(high)))
        bottom = math.ceil(math.log10(self.axis.linear_to))
        stride = max(1, math.ceil((top - bottom + 1) / max(most // 2, 1)))
        sizes = [10.0**k for k in range(top, bottom - 1, -stride)]
        values = [-size for size in sizes] + [0.0] + sizes[::-1]
        heights = zip(self.of(np.array(values)).tolist(), values, strict=True)
        return [(height, number(value)) for height, value in heights if low <= height <= high]


def _linear_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    rough = (high - low) / most
    if not rough > 0:
        return [(low, number(low))]
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((m * size for m in (1, 2, 2.5, 5) if m * size >= rough), 10 * size)
    places = np.arange(math.ceil(low / step), math.floor(high / step) + 1)
    digits = max(3, math.ceil(math.log10(max(abs(low), abs(high)) / step)) + 2)
    return [(float(k * step), number(float(k * step), digits)) for k in places]


def _log_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    mantissas = next((m for limit, m in _DECADES if high - low < limit), None)
    if mantissas is None:
        rough = (high - low) / most
        stride = next((s for s in _STRIDES if s >= rough), _STRIDES[-1])
        first = math.ceil(low / stride) * stride
        powers = range(first, min(math.floor(high), _LARGEST) + 1, stride)
        return [(float(k), _power(k)) for k in powers]
    found = [
        (math.log10(m) + k, number(m * 10.0**k))
        for k in range(math.floor(low), math.ceil(high) + 1)
        for m in mantissas
        if low <= math.log10(m) + k <= high
    ]
    if len(found) >= 2:
        return found
    return [
        (math.log10(value), text)
        for value, text in _linear_ticks(10.0**low, 10.0**high, most)
        if value > 0
    ]


def _power(exponent: int) -> str:
    return number(10.0**exponent) if -4 <= exponent <= 5 else f"1e{exponent}"


def _log2_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    rough = max((high - low) / most, 1)
    stride = next((s for s in (1, 2, 4, 8, 16, 32, 64) if s >= rough), 128)
    first = math.ceil(low / stride) * stride
    return [(float(k), f"2^{k}") for k in range(first, math.floor(high) + 1, stride)]
