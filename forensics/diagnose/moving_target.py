"""A loss whose target moves: the value function of reinforcement learning, as its returns grow."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.loss_course import LATEST, Course
from forensics.diagnose.loss_rise import Rise
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals

NOISE = 0.2
"""Relative noise of single losses that a temporal-difference loss has and a language model's has
not (1 to 3 %)."""
EARLY = 1 / 6
"""Share of the run within which the loss must be at its best: the targets grow from the start."""
SLOW = 0.2
"""Share of the run that the rise to nine tenths of its height must take; a model that falls apart
does so in a few hundred steps."""
MOST = 30.0
"""Times the best level; targets grow by a decade or so, what blows up knows no end."""
SETTLED = 0.06
"""Share of the rise that the last eighth may still add to the eighth before it; a rise that goes
on in a line adds 0.12."""


def follows_its_target(signals: Signals, path: Course, rise: Rise) -> bool:
    """Does this rise look like the error against targets that grow, and not like a divergence?

    Several things together, none of which tells a divergence apart by itself: the loss is noisy
    and always finite, its best lies at the start and gained little, it climbs slowly to a level
    above the start, it settles there, and the gradient norm grows no faster than the loss does.
    """
    medians = path.medians
    count, height = len(medians), rise.end - rise.level
    last = max(LATEST, count // 8)
    after = medians[path.best :]
    climbing = int(np.argmax(after >= rise.level + 0.9 * height))
    added = median(medians[-last:]) - median(medians[-2 * last : -last])
    if signals.loss_bad.any() or rise.end > MOST * rise.level:
        return False
    return bool(
        path.row_noise > NOISE * median(medians)
        and path.best <= EARLY * count
        and rise.end > median(path.loss[:20])
        and climbing >= SLOW * count
        and added < SETTLED * height + 1.5 * path.noise
        and _norm_keeps_up(signals, path, rise)
    )


def _norm_keeps_up(signals: Signals, path: Course, rise: Rise) -> bool:
    """Has the norm grown at most as much as the loss (or is there none)?"""
    blocks = path.rows[path.bounds[:-1]]
    begin, end = int(blocks[path.best]), int(blocks[-LATEST])
    usual, now = median(signals.norm[: max(begin, 1)]), median(signals.norm[end:])
    known = np.isfinite(usual) and np.isfinite(now) and usual > 0
    return not known or now <= max(3.0, rise.end / max(rise.level, 1e-300)) * usual
