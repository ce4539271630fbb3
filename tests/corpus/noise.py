"""Noise as training has it: of unit scale, in log space, of shape (rows,)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rng = np.random.Generator


def gaussian(rng: Rng, rows: int) -> Floats:
    """Independent, standard normal."""
    return rng.standard_normal(rows)


def student(rng: Rng, rows: int, freedom: float) -> Floats:
    """Independent with heavy tails, scaled to the quartiles of a standard normal."""
    return rng.standard_t(freedom, rows) * {2: 0.826, 3: 0.882}.get(int(freedom), 0.9)


def correlated(rng: Rng, rows: int, length: float) -> Floats:
    """An autoregressive series of unit variance with a correlation length in rows."""
    keep = np.exp(-1.0 / length)
    shocks = rng.standard_normal(rows) * np.sqrt(1 - keep * keep)
    shocks[:1] = rng.standard_normal(min(rows, 1))
    return _filtered(shocks, keep)


def bursty(rng: Rng, rows: int) -> Floats:
    """Calm, with bursts of three times the noise for tens of steps."""
    loud = np.zeros(rows, dtype=bool)
    for start in np.flatnonzero(rng.random(rows) < 1 / 2000):
        loud[start : start + int(rng.integers(20, 80))] = True
    return rng.standard_normal(rows) * np.where(loud, 2.5, 0.9)


def drifting(rng: Rng, rows: int) -> Floats:
    """White noise on a line that drifts by up to four deviations over the run."""
    return rng.standard_normal(rows) + rng.uniform(-4, 4) * np.linspace(0, 1, rows)


KINDS = ("gaussian", "t3", "t2", "bursty", "sticky", "drifting")


def noise(rng: Rng, rows: int, kind: str) -> Floats:
    """Noise of one of ``KINDS``."""
    if kind == "t3":
        return student(rng, rows, 3)
    if kind == "t2":
        return student(rng, rows, 2)
    if kind == "bursty":
        return bursty(rng, rows)
    if kind == "sticky":
        return correlated(rng, rows, 30.0)
    if kind == "drifting":
        return drifting(rng, rows)
    return gaussian(rng, rows)


def wander(rng: Rng, rows: int, length: float) -> Floats:
    """A slow series of unit variance: straight lines between autoregressive knots."""
    knots = max(2, int(rows / max(length / 10, 1)) + 2)
    series = correlated(rng, knots, 10.0)
    return np.interp(np.linspace(0, knots - 1, rows), np.arange(knots), series)


def _filtered(shocks: Floats, keep: float) -> Floats:
    """``y[t] = keep · y[t-1] + shocks[t]`` in blocks, so that powers never underflow."""
    result = np.empty_like(shocks)
    block = max(1, min(len(shocks), int(-50 / np.log(keep))))
    powers = keep ** np.arange(block)
    last = 0.0
    for start in range(0, len(shocks), block):
        part = shocks[start : start + block]
        scale = powers[: len(part)]
        result[start : start + block] = scale * (np.cumsum(part / scale) + keep * last)
        last = float(result[start + len(part) - 1])
    return result
