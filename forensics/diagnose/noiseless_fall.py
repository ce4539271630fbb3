"""A loss that falls as smoothly as only a loss of the same data can."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass

SHAPE = (0.98, 0.01)
"""Share of the steps that go down, and share of the start that is left at their end."""
LEAST = 50
"""Steps the fall must take."""


@dataclass(frozen=True)
class NoiselessFall:
    """The fall: ``rows`` finite losses long, of which a share ``down`` is below the one before."""

    rows: int
    down: float


def noiseless_fall(
    signals: Signals, down: float = SHAPE[0], left: float = SHAPE[1], rows: int = LEAST
) -> NoiselessFall | None:
    """The fall from the first loss to a share ``left`` of it, if it has no noise; else None.

    Args:
        signals: the run; its losses are positive and of every step, or there is no such fall.
        down: least share of the steps that go down.
        left: share of the first loss at which the fall is looked at as a whole.
        rows: fewest losses until then.
    """
    loss = signals.finite_loss.values
    if signals.interval > 1 or len(loss) < rows or loss[0] <= 0 or loss[-1] > left * loss[0]:
        return None
    end = int(np.argmax(loss <= left * loss[0])) + 1
    if end < rows or float(loss[:end].min()) <= 0:
        return None
    share = float((loss[1:end] < loss[: end - 1]).mean())
    return NoiselessFall(end, share) if share >= down else None
