"""What the clip did: its threshold, which steps it clipped, and the stretch it is judged over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number
from forensics.runlog.steps import BoolArray, IntArray

SHRUNK = 1e-4
"""Relative shrinking that counts as clipped: torch's clip moves an unclipped norm by 2e-6, and
logs are printed with 4 digits."""
CONSTANT = 5e-3
"""Relative width of a constant threshold: half a unit in the last of 3 printed digits."""
AGREE = 0.9
"""Share of the clipped steps that must end at one norm for it to be the threshold."""
FIRST = 500
"""Clipped steps it is read from: the first, so that what follows does not change it."""
LEAST = 5
"""Clipped steps from which a threshold can be read."""


@dataclass(frozen=True, eq=False)
class Clip:
    """What is known about the clip.

    Attributes:
        known: can the log tell which steps were clipped?
        threshold: global norm clipped to; NaN where it is not constant or not known.
        stated: the threshold is run.json's, not read from the norms.
        seen: rows where it can be judged: norms finite, shape (rows,).
        clipped: rows that were clipped, or should have been, shape (rows,).
    """

    known: bool
    threshold: float
    stated: bool
    seen: BoolArray
    clipped: BoolArray

    @property
    def constant(self) -> bool:
        """Is there one threshold for the whole run?"""
        return bool(np.isfinite(self.threshold))


def clip_of(signals: Signals) -> Clip:
    """What the clip did in this run."""
    return signals.derived(_clip_of)


def _clip_of(signals: Signals) -> Clip:
    norm, post = signals.norm, signals.post_norm
    finite = np.isfinite(norm)
    measured = finite & np.isfinite(post)
    shrunk = measured & (post < (1 - SHRUNK) * norm)
    manifest = signals.run.manifest
    if manifest is not None and manifest.max_norm is not None:
        limit = float(manifest.max_norm)
        return Clip(True, limit, True, finite, finite & (norm > (1 + SHRUNK) * limit))
    ends = post[shrunk][:FIRST]
    limit = median(ends)
    agree = np.abs(ends - limit) <= CONSTANT * limit
    read = len(ends) >= LEAST and bool(agree.mean() >= AGREE)
    return Clip(bool(shrunk.any()), limit if read else float("nan"), False, measured, shrunk)


def judged_rows(signals: Signals) -> slice:
    """Rows between twice the warm-up and the first trouble, over which norms are summed up."""
    start = min(2 * warmup_rows(signals), len(signals) // 2)
    bad = np.flatnonzero(signals.loss_bad[start:])
    return slice(start, start + int(bad[0]) if len(bad) else len(signals))


def every_step(signals: Signals, window: int, share: float) -> IntArray:
    """Rows in windows where nearly every step is clipped, from the first clipped to the last."""
    return signals.derived(_every_step, window, share)


def _every_step(signals: Signals, window: int, share: float) -> IntArray:
    clip = clip_of(signals)
    rows = _windows_above(clip, _judged(signals), window, share)
    clipped = np.flatnonzero(clip.clipped[rows])
    return rows[clipped[0] : clipped[-1] + 1] if len(clipped) else rows


def often(signals: Signals, window: int, share: float, nearly_all: float) -> IntArray:
    """Rows in windows of which more than ``share`` are clipped, without those nearly all are."""
    rest = np.ones(len(signals), dtype=bool)
    rest[every_step(signals, window, nearly_all)] = False
    rows = _judged(signals)
    return _windows_above(clip_of(signals), rows[rest[rows]], window, share)


def _judged(signals: Signals) -> IntArray:
    """Rows after twice the warm-up where a clip can be judged."""
    start = 2 * warmup_rows(signals)
    return np.asarray(np.flatnonzero(clip_of(signals).seen[start:]) + start, dtype=np.int64)


def _windows_above(clip: Clip, rows: IntArray, window: int, share: float) -> IntArray:
    """Those of the rows that lie in windows of which more than ``share`` are clipped."""
    if len(rows) < window:
        return rows[:0]
    total = np.concatenate(([0], np.cumsum(clip.clipped[rows])))
    found = np.flatnonzero(total[window:] - total[:-window] > share * window)
    edges = np.zeros(len(rows) + 1, dtype=np.int64)
    edges[found] += 1
    edges[found + window] -= 1
    return rows[np.cumsum(edges)[:-1] > 0]


def quantiles(signals: Signals) -> str:
    """Quantiles of the norm before the clip, as a clause; empty where too few are known."""
    norm = signals.norm[judged_rows(signals)]
    norm = norm[np.isfinite(norm)]
    if len(norm) < 20:
        return ""
    told = ", ".join(number(float(value)) for value in np.percentile(norm, (50, 90, 99)))
    return f"; norm quantiles 50/90/99 %: {told}"
