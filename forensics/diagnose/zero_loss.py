"""A loss that is switched off: exactly 0 for good, from one step to the next."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.series import last_true, median
from forensics.diagnose.signals import Signals
from forensics.runlog.steps import FloatArray

PAST = 20
"""Losses just before that must show no way down to 0."""
LEAST_PAST = 10
"""Fewer losses say nothing about where the loss was going."""
ANNOUNCED = 0.1
"""A loss on its way to 0 (a margin loss that is met, a fit to the last bit) comes by a tenth of
its level first, or by 0 itself on single batches."""
FALLING = 0.5
"""The last five of the past below half of its level: it falls fast enough to arrive."""
TINY = 1e-3
"""Share of the first losses below which rounding alone may end at 0."""
LEAST_ZEROS = 20
"""Losses of 0 that are no chance of rounding any more, where they are most of a log."""
GRAINS = 10
"""A loss must be so many of its own grains from 0: one printed with two decimals or computed in
bf16 comes to 0 from the last grain."""


def switched_off(signals: Signals) -> int | None:
    """The row from which the loss is exactly 0 until the end though nothing led there, or None."""
    if not _ends_at_zero(signals):
        return None
    rows = np.flatnonzero(signals.present("loss"))
    loss = signals.loss[rows]
    alive = np.flatnonzero(loss != 0)  # NaN is alive: another rule tells it
    if len(alive) == 0:
        return None
    first = int(alive[-1]) + 1
    past = np.abs(loss[max(0, first - PAST) : first])
    if len(past) < LEAST_PAST or not np.isfinite(past).all():
        return None
    level = median(past)
    announced = past.min() <= ANNOUNCED * level or median(past[-5:]) <= FALLING * level
    tiny = level < TINY * median(np.abs(loss[:PAST])) or past.min() < GRAINS * _grain(loss[:first])
    return None if announced or tiny else int(rows[first])


def at_zero_for_good(signals: Signals) -> int | None:
    """The row from which all losses are exactly 0, if they are most of the log; None if not.

    However it came there, nothing is learned from then on.
    """
    if not _ends_at_zero(signals):
        return None
    rows = np.flatnonzero(signals.present("loss"))
    alive = np.flatnonzero(signals.loss[rows] != 0)
    if len(alive) == 0:
        return None
    first = int(alive[-1]) + 1
    zeros = len(rows) - first
    return int(rows[first]) if zeros >= LEAST_ZEROS and 2 * zeros > len(rows) else None


def _ends_at_zero(signals: Signals) -> bool:
    """Is the last loss that was written 0? Of most logs that is all that need be looked at."""
    end = last_true(signals.present("loss"))
    return end >= 0 and bool(signals.loss[end] == 0)


def _grain(loss: FloatArray) -> float:
    """The least step between two of the losses before: what rounding leaves; 0 where unknown."""
    values = np.unique(loss[np.isfinite(loss)][-1000:])
    return float(np.diff(values).min()) if len(values) > 1 else 0.0
