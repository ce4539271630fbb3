"""Steps that the optimizer did not take, as the learning rate of a cosine decay tells them.

From step W on a cosine over N steps is ``lr = base / 2 · (1 + cos(π · (taken - W) / (N - W)))``.
N is known where the log says how long the run is to be, so that each rate gives the steps taken
until then, once base and W are found. They are found as the ones by which every record comes out as
a whole number of steps; any other curve gives fractions.
"""

from __future__ import annotations

import numpy as np

from forensics.runlog.scanner.rate_digits import spacing_of
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

_FEWEST = 8
"""Records of a decay; with fewer some curve fits by chance."""
_WHOLE = 0.02
"""Steps by which a count of steps may miss a whole number."""
_MOST_WARMUPS = 4096
"""Warm-ups that are tried."""
_LOST_BEFORE = 16
"""Steps lost before the first record that are tried where no warm-up is in the log."""
_PROBES = 6
"""Records by which most warm-ups are ruled out at once."""
_STEEP = (0.03, 0.97)
"""Shares of the highest rate between which a cosine is steep enough to be probed."""


def lost_in_cosine(
    at: IntArray, rate: FloatArray, planned: int, *, slope: float | None = None, after: int = 0
) -> FloatArray | None:
    """Steps lost until each record of a cosine decay, counted from the start of the run.

    Args:
        at: steps attempted until each record, ascending, shape (n,).
        rate: learning rate at each, finite, never rising, shape (n,).
        planned: the step at which the cosine ends.
        slope: learning rate a step of the warm-up before it; None where the log has none.
        after: step of the last record of the warm-up.

    Returns:
        Whole numbers, NaN where the rate is too flat to tell; None where it is no such cosine.
    """
    if len(at) < _FEWEST or (np.diff(rate) > 0).any() or planned <= at[0]:
        return None
    spacing = spacing_of(rate)
    warmups = np.arange(after, min(int(at[1]), planned - 1, after + _MOST_WARMUPS) + 1.0)
    if slope is not None:
        base, warmup = slope * warmups, warmups
    else:
        early = np.arange(0.0, _LOST_BEFORE)
        warmup, lost = (grid.ravel() for grid in np.meshgrid(warmups, early))
        progress = (at[1] - lost - warmup) / (planned - warmup)
        base = 2 * rate[1] / (1 + np.cos(np.pi * np.clip(progress, 0, 1)))
    found = [
        lost
        for top, steps in _likely(at, rate, planned, base, warmup)
        if (lost := _lost(at, rate, spacing, planned, top, steps)) is not None
    ]
    return min(found, key=lambda lost: float(np.nansum(lost)), default=None)


def _likely(
    at: IntArray, rate: FloatArray, planned: int, base: FloatArray, warmup: FloatArray
) -> list[tuple[float, float]]:
    """The pairs of base and warm-up by which some records in the middle come out whole."""
    steep = np.flatnonzero((rate > _STEEP[0] * rate[0]) & (rate < _STEEP[1] * rate[0]))
    if len(steep) < _PROBES:
        return []
    fits = base > 0
    for row in steep[np.linspace(0, len(steep) - 1, _PROBES).astype(int)]:
        taken = _taken(rate[row], base, warmup, planned)
        with np.errstate(invalid="ignore"):
            fits &= np.abs(taken - np.rint(taken)) < _WHOLE
    return [(float(base[i]), float(warmup[i])) for i in np.flatnonzero(fits)[:_MOST_WARMUPS]]


def _taken(
    rate: float | FloatArray, base: float | FloatArray, warmup: float | FloatArray, planned: int
) -> FloatArray:
    """Steps taken at a rate; NaN where it is higher than the cosine's base."""
    with np.errstate(invalid="ignore"):
        phase = np.arccos(2 * np.asarray(rate) / base - 1)
    return np.asarray(warmup + (planned - warmup) * phase / np.pi)


def _lost(
    at: IntArray, rate: FloatArray, spacing: FloatArray, planned: int, base: float, warmup: float
) -> FloatArray | None:
    """Steps lost by one cosine; None where they are not whole, or not a count that only grows."""
    taken = _taken(rate, base, warmup, planned)
    steep = (
        np.pi
        * base
        / (2 * (planned - warmup))
        * np.sin(np.pi * np.clip((taken - warmup) / (planned - warmup), 0, 1))
    )
    tells: BoolArray = np.isfinite(taken) & (spacing < _WHOLE * steep) & (taken > warmup)
    lost = at - taken
    whole = np.rint(lost)
    if tells.sum() < max(_FEWEST, len(at) // 2):
        return None
    if (np.abs(lost - whole)[tells] > _WHOLE).any() or (whole[tells] < 0).any():
        return None
    if (np.diff(whole[tells]) < 0).any() or (np.diff(whole[tells]) > np.diff(at[tells])).any():
        return None
    return np.where(tells, whole, np.nan)
