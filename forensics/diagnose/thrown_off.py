"""A run that its first updates threw off: what it knew at its start is the best it ever knew.

A learning rate far above what the weights bear does its damage within a few steps. The loss shoots
up, comes down again as far as a model that predicts the same for every input (often all units are
dead by then), and stays there, near ln(classes), where it began. Such a log is calm nearly all
along, and nothing in its later course tells it from a run that has converged.
"""

from __future__ import annotations

import math

import numpy as np

from forensics.diagnose.loss_course import Course, course
from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.series import median, row_medians
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.steps import FloatArray

LEAST = 100
"""Finite losses below which a slow start is not told from none."""
FIRST = 50
"""Rows within which the first updates do their damage, or as many as the warm-up has."""
SHARE = 0.25
"""Share of the losses that these may be at most: the rest shows what became of it."""
UP = 3.0
"""Times the first loss that one soon after must reach; a sound start without a warm-up may come
near it, and then learn as little as fine-tuning does."""
FAR = 5.0
"""Times the first loss from which such a peak is beyond any sound start."""
DOWN = 2.0
"""Times the end that the peak must be: a value function's loss climbs with its returns for good."""
AROUND = 1.3
"""Times the first loss within which a loss that fell first must end, for the same reason."""
NORM_UP = 5.0
"""Times the first gradient norm that the norm reaches beside it: the weights were thrown, and the
first row is no half of a loss (a partial window, a running mean that only begins)."""
ALIKE = 0.15
"""Where no norm is logged: share of the first loss within which the end must be, for the same."""
DIP = 0.1
"""Share of the first loss by which it must have been lower, where it lost again what it had."""
KEPT = 0.95
"""Share of the first loss that the end must not be below; fine-tuning may gain as little."""
KEPT_FAR = 0.8
"""The same after a peak beyond any sound start: class frequencies alone are learned as far."""
GAIN = 0.02
"""Share of the loss that the last quarter may be below the one before; more is still learning."""
NOISE = 0.3
"""Noise of single losses, as a share of the first, up to which that one says where it began."""
TWO_SIDES = 1.2 * math.log(2)
"""First losses up to here are not judged: that of a generator begins at ln 2 and may go up."""


@dataclass(frozen=True)
class ThrownOff:
    """What the first updates did.

    Attributes:
        start: the first loss.
        worst: row of the highest loss among the first rows.
        height: that loss.
        best: the lowest median of three losses among the first rows.
        end: median loss of the last fifth.
        norm: times the first gradient norm that one of the first rows reached; NaN if unknown.
    """

    start: float
    worst: int
    height: float
    best: float
    end: float
    norm: float


def thrown_off(signals: Signals) -> ThrownOff | None:
    """Did the first updates of this run undo it? None where they did not, or where none can tell.

    The log must begin at its first step. Told is a loss that shot up at once, or fell and went
    back, together with the gradient norm where that is logged, and then ended without any gain.
    """
    if len(signals.finite_loss.values) < LEAST:
        return None
    path = course(signals)
    if not _begins(signals, path):
        return None
    first = min(max(FIRST, warmup_rows(signals)), int(SHARE * len(path.loss)))
    early, start = path.loss[:first], float(path.loss[0])
    worst = int(np.argmax(early))
    triples = row_medians(np.stack((early[:-2], early[1:-1], early[2:]), axis=1))
    found = ThrownOff(
        start=start,
        worst=int(path.rows[worst]),
        height=float(early[worst]),
        best=float(triples.min()),
        end=median(path.loss[-(len(path.loss) // 5) :]),
        norm=_norm_growth(signals, int(path.rows[len(early) - 1])),
    )
    alike = abs(found.end / start - 1) <= ALIKE
    if not (found.norm >= NORM_UP or (math.isnan(found.norm) and alike)):
        return None
    height = found.height / (start + 3 * path.row_noise)  # one loss may be low by chance
    shot_up = height >= UP and found.height >= DOWN * found.end
    fell = start - found.best > max(DIP * start, 5 * path.row_noise)
    went_back = fell and found.end <= AROUND * start
    kept = KEPT_FAR if height >= FAR else KEPT
    gained_nothing = found.end >= kept * start and _stands(path, found.end)
    return found if (shot_up or went_back) and gained_nothing else None


def _begins(signals: Signals, path: Course) -> bool:
    """Does the log show the start of a training whose single losses say where it is?"""
    facts = signals.table.facts
    if facts is not None and facts.unit == PER_EPOCH:
        return False
    if signals.step_at(int(path.rows[0])) > 1 or float(path.medians.min()) <= 0:
        return False
    return float(path.loss[0]) > TWO_SIDES and path.row_noise <= NOISE * float(path.loss[0])


def _norm_growth(signals: Signals, last: int) -> float:
    norms: FloatArray = signals.norm[: last + 1]
    known = norms[np.isfinite(norms) & (norms > 0)]
    return float(known.max() / known[0]) if len(known) else math.nan


def _stands(path: Course, end: float) -> bool:
    """Has the loss stopped: no lower in the last quarter than in the one before, and never lower?

    A level below the end's for a tenth of the run is a run that learned, and lost it later.
    """
    blocks = path.medians
    quarter = max(len(blocks) // 4, 1)
    fell = median(blocks[-2 * quarter : -quarter]) - median(blocks[-quarter:])
    low = np.sort(blocks[1:])[max(len(blocks) // 10, 1)]
    still = fell <= max(GAIN * end, 2 * path.noise)
    return bool(still and low >= end - max(0.05 * end, 3 * path.noise))
