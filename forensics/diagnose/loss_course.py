"""The long course of the loss, in 40 block medians."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finite import KeptRows
from forensics.diagnose.series import MAD_TO_SIGMA, block_bounds, block_medians, median, sigma
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray

BLOCKS = 40
"""Blocks of the run: enough to see a trend, few enough that each median is precise."""
LATEST = 3
"""Blocks at the end that must agree."""
NO_GAIN = (0.012, 1.5, 1000)
"""Share, standard errors and latest first step for a loss that never fell (loss-plateau)."""
DROP = 0.25
"""Share of what the loss had fallen by that a rise is measured against where the loss is near 0."""
DROWNED = 20.0
"""Times the noise that a change is measured against where the level is lost in it (the policy
losses of reinforcement learning wander about 0 by 2 to 3 times their noise)."""


@dataclass(frozen=True, eq=False)
class Course:
    """The finite losses in blocks.

    Attributes:
        rows: rows of the finite losses, F of them.
        loss: those losses, shape (F,).
        bounds: where the blocks begin and end in them, shape (blocks + 1,).
        medians: shape (blocks,).
        noise: standard deviation of a block's median, robust.
        row_noise: standard deviation of one loss about its block, robust.
    """

    rows: KeptRows
    loss: FloatArray
    bounds: IntArray
    medians: FloatArray
    noise: float
    row_noise: float

    def __len__(self) -> int:
        return len(self.medians)

    @property
    def best(self) -> int:
        """The lowest block before the last three, by medians of three (no outlier is a best)."""
        a, b, c = self.medians[:-2], self.medians[1:-1], self.medians[2:]
        smooth = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        return 1 + int(np.argmin(smooth[: 1 - LATEST]))

    def size_of(self, level: float) -> float:
        """What a change is measured against: the level, or near 0 the fall so far or the noise."""
        fall = float(np.max(self.medians[: self.best + 1])) - float(self.medians[self.best])
        blurred = DROWNED * self.row_noise if self.drowned(level) else 0.0
        return max(abs(level), DROP * fall, blurred, 1e-300)

    def drowned(self, level: float) -> bool:
        """Is this level, or that of the start, lost in the noise of single losses about 0?

        So are the surrogate losses of policy gradients: they measure no error, and one that comes
        back to 0 from below is no worse than before.
        """
        lowest = min(abs(level), abs(median(self.loss[:8])))
        return lowest < 2 * self.row_noise and bool(self.medians.min() < 0)


def course(signals: Signals) -> Course:
    """The run's losses in 40 blocks (fewer where there are fewer losses)."""
    return signals.derived(_course)


def _course(signals: Signals) -> Course:
    rows, loss = signals.finite_loss.rows, signals.finite_loss.values
    bounds = block_bounds(len(rows), BLOCKS)
    medians = block_medians(loss, BLOCKS)
    size = len(rows) / max(len(medians), 1)
    within = (
        MAD_TO_SIGMA * median(np.abs(np.diff(_thinned(loss)))) / np.sqrt(2) if size > 1 else 0.0
    )
    bends = np.abs(np.diff(medians, 2))  # second differences: a steady fall or rise is no noise
    between = MAD_TO_SIGMA * median(bends) / np.sqrt(6) if len(bends) else 0.0
    noise = max(1.25 * within / np.sqrt(size), between)
    return Course(rows, loss, bounds, medians, noise, max(within, between))


def row_noise(values: FloatArray) -> float:
    """Standard deviation from row to row, robust; 0 for fewer than 2 values."""
    spread = MAD_TO_SIGMA * median(np.abs(np.diff(_thinned(values)))) / np.sqrt(2)
    return spread if np.isfinite(spread) else 0.0


def _thinned(loss: FloatArray, most: int = 8192) -> FloatArray:
    """Pairs of neighbours spread over the series: enough for the noise from row to row."""
    if len(loss) <= most:
        return loss
    start = np.linspace(0, len(loss) - 64, most // 64).astype(np.int64)
    picked = loss[start[:, None] + np.arange(64)]
    return np.asarray(np.concatenate((picked, np.full((len(start), 1), np.nan)), axis=1).ravel())


def never_learned(signals: Signals, gain: float, errors: float, fresh: int) -> bool:
    """Did the loss of a fresh run gain nothing, beyond doubt?

    Args:
        signals: the run.
        gain: gain as a share of the loss that counts as none.
        errors: standard errors that are added to what was gained.
        fresh: a log that begins after this step is the middle of a run.
    """
    path = course(signals)
    if signals.step_at(0) > fresh or len(path) < BLOCKS or path.medians.min() <= 0:
        return False
    logs = np.log(path.medians)
    fifth = len(logs) // 5
    gained = median(logs[:fifth]) - median(logs[-fifth:])
    error = 1.25 * np.sqrt(2 / fifth) * max(sigma(logs), path.noise / median(path.medians))
    start = path.loss[:10]
    quick = float(np.log(median(start) / median(path.medians[-fifth:]))) if start.min() > 0 else 1.0
    fell_at_once = quick > 0.02 + 1.25 * path.row_noise / median(path.medians)
    dipped = float(logs.max() - logs.min()) > 0.05 + 6 * error
    flat = abs(gained) + errors * error < gain
    return bool(flat and not fell_at_once and not dipped)
