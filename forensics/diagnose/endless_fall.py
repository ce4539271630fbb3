"""A loss that falls below zero and does not slow down."""

from __future__ import annotations

import math

import numpy as np

from forensics.diagnose.loss_course import LATEST, course
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass

LEAST = 100
"""Finite losses below which the shape of a fall is not known."""
SHAPE = 0.2
"""Share of the whole fall in the last quarter of the run, from which it does not slow down."""
STEADY = 0.75
"""Share of the blocks that must be below the one before: a loss that wanders goes both ways."""
CLEAR = 20.0
"""Times the noise of a block that the fall must be."""


@dataclass(frozen=True)
class EndlessFall:
    """How far the loss fell.

    Attributes:
        first: row from which on it is below 0 (the first with a loss where it begins there).
        start: median of the first losses.
        end: median of the last blocks, below 0.
        late: share of the fall in the last quarter of the run.
        norm: gradient norm at the end over that at the start; NaN where none is logged.
    """

    first: int
    start: float
    end: float
    late: float
    norm: float


def endless_fall(signals: Signals, late: float = SHAPE) -> EndlessFall | None:
    """The fall of a loss that ends below 0 and at its lowest, if its shape shows no end of it.

    Args:
        signals: the run.
        late: least share of the fall in the last quarter.
    """
    if len(signals.finite_loss.values) < LEAST or no_measure(signals):
        return None
    path = course(signals)
    medians = path.medians
    start, end = median(path.loss[:8]), median(medians[-LATEST:])
    fall = start - end
    if end >= 0 or fall < max(1.0, 0.5 * abs(start), CLEAR * path.noise):
        return None
    lowest = float(medians[-1])
    share = (float(medians[-1 - len(medians) // 4]) - lowest) / (start - lowest)
    steady = float((np.diff(medians) < 0).mean()) >= STEADY
    if share < late or not steady or lowest > float(medians.min()) + 3 * path.noise:
        return None
    above = np.flatnonzero(path.loss >= 0)
    first = int(path.rows[min(int(above[-1]) + 1, len(path.loss) - 1)]) if len(above) else 0
    return EndlessFall(first, start, end, share, _norm_growth(signals))


def _norm_growth(signals: Signals) -> float:
    twentieth = max(len(signals) // 20, 8)
    begin, end = median(signals.norm[:twentieth]), median(signals.norm[-twentieth:])
    return end / begin if begin > 0 and np.isfinite(end) else math.nan
