"""A loss that begins below what it can hold: a detector before it has found its first objects."""

from __future__ import annotations

import math

import numpy as np

from forensics.diagnose.loss_course import Course
from forensics.diagnose.loss_rise import Rise
from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals

GUESS = math.log(2)
"""The least cross-entropy of a classifier that guesses. An untrained model is below it only where
hardly anything is counted yet: focal losses, and losses over positives that the model assigns."""
START = 1 / 20
"""Share of the run within which the loss must be at its best."""
SLOW = 1 / 10
"""Share of the run that the climb must take; one step too far blows up within a few rows."""
FALLEN = 0.25
"""Share of the rise that must be gone again by the end."""
CEILING = math.log(100)
"""What guessing among a hundred classes costs: a loss that only fills up stays below it."""
EARLY = 1 / 4
"""Share of a log that ends within the warm-up, within which the loss must be at its best."""
GROWN = 3.0
"""Times its first values from which a gradient norm tells that this is more than filling up."""
STEADY = 0.6
"""Share of neighbouring blocks after the peak, at least, that fall."""


def starts_low(path: Course, rise: Rise) -> bool:
    """Does this rise look like a loss that fills up and is then learned, not like a divergence?

    It is at its best at the very start and below guessing, climbs smoothly, and falls steadily
    from its peak to the end of the log.
    """
    medians = path.medians
    count, top = len(medians), int(np.argmax(medians))
    height = float(medians[top]) - rise.level
    after = medians[top:]
    if len(after) < count / 2 or not 0 < rise.level < GUESS:
        return False
    return bool(
        path.best <= START * count
        and top - path.best >= SLOW * count
        and float(medians[top] - medians[-1]) > FALLEN * height
        and (np.diff(after) < 0).mean() >= STEADY
    )


def may_fill_up(signals: Signals, path: Course, rise: Rise) -> bool:
    """Could this rise still be such a loss on its way up, as far as the log goes?

    It ends within the warm-up of the learning rate; the loss was at its best near the start and
    below guessing, climbs for half of the log at least, and has come to no more than a loss of
    classes can; and the gradient norm, where there is one, has not grown with it.
    """
    end = len(signals) - 1
    norms = signals.norm[np.isfinite(signals.norm)]
    grown = len(norms) > 0 and median(norms[-8:]) > GROWN * median(norms[:8])
    return bool(
        end <= warmup_rows(signals)
        and 0 < rise.level < GUESS
        and path.best <= EARLY * len(path.medians)
        and rise.first <= end / 2
        and rise.end < CEILING
        and not grown
    )
