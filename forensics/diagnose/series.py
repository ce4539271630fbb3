"""Pure functions on one series: run lengths, baselines, block medians. No NaN blinds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.runlog.steps import BoolArray, FloatArray, IntArray

WINDOW = 128
"""Past finite values a baseline is made of (a spike of 1 in 128 cannot move its median)."""
HOP = 64
"""Values after which the baseline is renewed; medians cost 4 of 5 of a detector's time."""
HEAD = WINDOW + HOP
"""Up to here the baseline is renewed at every value, so that short logs are judged too."""
MIN_PAST = 8
"""Fewer past values than this say nothing about the noise."""
MAD_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for Gaussian noise."""
_CHUNK = 1 << 14


def runs_of(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """First and last index of each run of True; two arrays of shape (runs,)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return edges[0::2], edges[1::2] - 1


def episodes(rows: IntArray, gap: int) -> list[tuple[int, int]]:
    """Group ascending rows: a new episode begins after more than ``gap`` rows of quiet."""
    if len(rows) == 0:
        return []
    cuts = np.flatnonzero(np.diff(rows) > gap)
    starts = np.concatenate(([0], cuts + 1))
    ends = np.concatenate((cuts, [len(rows) - 1]))
    return [(int(rows[a]), int(rows[b])) for a, b in zip(starts, ends, strict=True)]


MOST_EPISODES = 12
"""Findings one rule tells one by one; a reader at night reads no more, and a log of a hundred
thousand alternating rows must not cost a finding each."""


@dataclass(frozen=True)
class Episode:
    """A stretch of bad rows, with quiet before and after it.

    Attributes:
        first: its first bad row.
        last: its last bad row.
        rows: how many of its rows are bad.
        folded: how many episodes it stands for: 1, or more in the last one told.
    """

    first: int
    last: int
    rows: int
    folded: int = 1


def told_episodes(rows: IntArray, gap: int, most: int = MOST_EPISODES) -> list[Episode]:
    """The episodes of ascending bad rows; from the ``most``-th on they are folded into one.

    Rows that are appended later neither remove an episode nor move its first row: what is folded
    starts where the ``most``-th episode starts.
    """
    if len(rows) == 0:
        return []
    cuts = np.flatnonzero(np.diff(rows) > gap) + 1
    starts = np.concatenate(([0], cuts[: most - 1]))
    ends = np.append(starts[1:], len(rows))
    told = [
        Episode(int(rows[a]), int(rows[b - 1]), int(b - a))
        for a, b in zip(starts, ends, strict=True)
    ]
    extra = len(cuts) + 1 - len(told)
    if extra:
        told[-1] = Episode(told[-1].first, told[-1].last, told[-1].rows, 1 + extra)
    return told


def median(values: NDArray[Any]) -> float:
    """Median of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def sigma(values: NDArray[Any]) -> float:
    """Robust standard deviation (1.4826 MAD) of the finite values; NaN where there are none."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return float("nan")
    return MAD_TO_SIGMA * float(np.median(np.abs(finite - np.median(finite))))


@dataclass(frozen=True)
class Baseline:
    """What was normal just before each row, from past finite values only.

    Attributes:
        rows: rows of the finite values, shape (F,).
        values: those values, shape (F,).
        center: median of the up to 128 values before each; NaN for the first 8; shape (F,).
        spread: robust standard deviation of the same, never 0; shape (F,).
    """

    rows: IntArray
    values: FloatArray
    center: FloatArray
    spread: FloatArray

    @property
    def z(self) -> FloatArray:
        """Robust z of each finite value against its own past, shape (F,); NaN for the first 8."""
        return (self.values - self.center) / self.spread


def baseline(values: FloatArray, floor: float = 1e-3) -> Baseline:
    """The running baseline of a series.

    It looks only backwards and is aligned at the start, so that appending rows changes nothing
    that was said before.

    Args:
        values: shape (rows,), any values; non-finite ones are left out.
        floor: least spread, so that a flat past does not turn rounding into a spike.
    """
    rows = np.flatnonzero(np.isfinite(values))
    kept = values[rows]
    count = len(kept)
    center = np.full(count, np.nan)
    spread = np.full(count, np.nan)
    for i in range(MIN_PAST, min(count, HEAD)):
        center[i], spread[i] = _level(kept[max(0, i - WINDOW) : i])
    if count > HEAD:
        centers, spreads = _hop_levels(kept)
        at = (np.arange(HEAD, count) - WINDOW) // HOP
        center[HEAD:], spread[HEAD:] = centers[at], spreads[at]
    return Baseline(rows, kept, center, np.maximum(spread, floor))


def _level(past: FloatArray) -> tuple[float, float]:
    middle = float(np.median(past))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(past - middle)))


def _hop_levels(kept: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Median and sigma of windows of 128 that start every 64 values."""
    windows = np.lib.stride_tricks.sliding_window_view(kept, WINDOW)[::HOP]
    centers, spreads = np.empty(len(windows)), np.empty(len(windows))
    for start in range(0, len(windows), _CHUNK):  # bounds the copy that a median makes
        part = slice(start, start + _CHUNK)
        middle = np.median(windows[part], axis=1)
        centers[part] = middle
        deviation = np.abs(windows[part] - middle[:, None])
        spreads[part] = MAD_TO_SIGMA * np.median(deviation, axis=1)
    return centers, spreads


def block_medians(values: FloatArray, blocks: int) -> FloatArray:
    """Medians of ``blocks`` equal stretches of the finite values, shape (≤ blocks,)."""
    kept = values[np.isfinite(values)]
    if len(kept) == 0:
        return np.empty(0)
    size = max(1, len(kept) // blocks)
    usable = kept[: size * min(blocks, len(kept))]
    return np.asarray(np.median(usable.reshape(-1, size), axis=1), dtype=np.float64)


def spread_out(rows: IntArray, most: int = 12) -> IntArray:
    """At most ``most`` of the rows, first and last kept, evenly spread: enough for evidence."""
    if len(rows) <= most:
        return np.asarray(rows, dtype=np.int64)
    picks = np.unique(np.linspace(0, len(rows) - 1, most).round().astype(np.int64))
    return np.asarray(rows[picks], dtype=np.int64)
