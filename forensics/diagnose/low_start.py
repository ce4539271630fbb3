"""A loss that begins below what it can hold: a detector before it has found its first objects."""

from __future__ import annotations

import math

import numpy as np

from forensics.diagnose.loss_course import Course
from forensics.diagnose.loss_rise import Rise

GUESS = math.log(2)
"""The least cross-entropy of a classifier that guesses. An untrained model is below it only where
hardly anything is counted yet: focal losses, and losses over positives that the model assigns."""
START = 1 / 20
"""Share of the run within which the loss must be at its best."""
SLOW = 1 / 10
"""Share of the run that the climb must take; one step too far blows up within a few rows."""
FALLEN = 0.25
"""Share of the rise that must be gone again by the end."""
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
