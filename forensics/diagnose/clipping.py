"""What the clip did: its threshold, which steps it clipped, and the stretch it is judged over."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.blocks import blocks, first_where, mask_where
from forensics.diagnose.optimizer_facts import divides_by_its_size
from forensics.diagnose.percentiles import finite_percentiles
from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.series import last_true, median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray

SHRUNK = 1e-4
"""Relative shrinking that counts as clipped: torch's clip moves an unclipped norm by 2e-6, and
logs are printed with 4 digits."""
CONSTANT = 5e-3
"""Relative width of a constant threshold: half a unit in the last of 3 printed digits."""
AGREE = 0.9
"""Share of the clipped steps that must end at one norm for it to be the threshold."""
FIRST = 500
"""Clipped steps it is read from: the first, so that what follows does not change it."""
STARVED = 50.0
"""Times the threshold that a usual norm must be for the clip to be what keeps SGD from learning:
the rate in force is so much smaller; rates chosen by hand are wrong by a decade, not by two."""
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
    manifest = signals.run.manifest
    if manifest is not None and manifest.max_norm is not None:
        limit = float(manifest.max_norm)
        return Clip(True, limit, True, finite, finite & (norm > (1 + SHRUNK) * limit))
    measured = finite & np.isfinite(post)
    shrunk = mask_where(len(norm), lambda at: measured[at] & (post[at] < (1 - SHRUNK) * norm[at]))
    ends = post[first_where(len(norm), lambda at: shrunk[at], FIRST)]
    limit = median(ends)
    agree = np.abs(ends - limit) <= CONSTANT * limit
    read = len(ends) >= LEAST and bool(agree.mean() >= AGREE)
    return Clip(bool(shrunk.any()), limit if read else float("nan"), False, measured, shrunk)


def judged_rows(signals: Signals) -> slice:
    """Rows between twice the warm-up and the first trouble, over which norms are summed up."""
    start = min(2 * warmup_rows(signals), len(signals) // 2)
    bad = np.flatnonzero(signals.loss_bad[start:])
    return slice(start, start + int(bad[0]) if len(bad) else len(signals))


@dataclass(frozen=True)
class ClippedRows:
    """Rows of windows in which many steps are clipped, summed up.

    Attributes:
        count: how many rows; the rest says nothing where it is 0.
        first: the first of them.
        last: the last of them.
        share: which of them are clipped.
        head: the first 12 of them.
    """

    count: int
    first: int = 0
    last: int = 0
    share: float = 0.0
    head: tuple[int, ...] = ()


def clipped_rows(signals: Signals, inside: BoolArray) -> ClippedRows:
    """A mask of rows, summed up."""
    count = int(np.count_nonzero(inside))
    if count == 0:
        return ClippedRows(0)
    share = int(np.count_nonzero(clip_of(signals).clipped & inside)) / count
    head = tuple(first_where(len(inside), lambda at: inside[at], 12).tolist())
    return ClippedRows(count, head[0], last_true(inside), share, head)


def every_step(signals: Signals, window: int, share: float) -> BoolArray:
    """Rows in windows where nearly every step is clipped, from the first clipped to the last."""
    return signals.derived(_every_step, window, share)


def _every_step(signals: Signals, window: int, share: float) -> BoolArray:
    clip = clip_of(signals)
    inside = _windows_above(clip, _judged(signals), window, share)
    clipped = inside & clip.clipped
    if clipped.any():
        inside[: int(np.argmax(clipped))] = False
        inside[last_true(clipped) + 1 :] = False
    return inside


def often(signals: Signals, window: int, share: float, nearly_all: float) -> BoolArray:
    """Rows in windows of which more than ``share`` are clipped, without those nearly all are."""
    rest = _judged(signals) & ~every_step(signals, window, nearly_all)
    return _windows_above(clip_of(signals), rest, window, share)


def _judged(signals: Signals) -> BoolArray:
    """Rows after twice the warm-up where a clip can be judged, shape (rows,)."""
    judged = clip_of(signals).seen.copy()
    judged[: 2 * warmup_rows(signals)] = False
    return judged


def _windows_above(clip: Clip, judged: BoolArray, window: int, share: float) -> BoolArray:
    """Those of the judged rows in windows of which more than ``share`` are clipped, (rows,)."""
    clipped = clip.clipped[judged]
    inside = np.zeros(len(clipped), dtype=bool)
    for starts in blocks(len(clipped) - window + 1):
        rows = slice(starts.start, starts.stop + window - 1)
        total = np.cumsum(np.append(0, clipped[rows]), dtype=np.int32)
        found = np.flatnonzero(total[window:] - total[:-window] > share * window)
        if len(found):
            edges = np.zeros(len(total), dtype=np.int32)
            edges[found] += 1
            edges[found + window] -= 1
            inside[rows] |= np.cumsum(edges)[:-1] > 0
    result = np.zeros(len(judged), dtype=bool)
    result[judged] = inside
    return result


def quantiles(signals: Signals, inside: BoolArray) -> str:
    """Quantiles of the norm before the clip, as a clause; empty where too few are known.

    Args:
        signals: the run.
        inside: the rows that are told of, shape (rows,). What comes after the first trouble is
            left out where that leaves most of them.
    """
    sound = np.zeros(len(inside), dtype=bool)
    sound[judged_rows(signals)] = True
    sound &= inside
    most = np.count_nonzero(sound) * 2 > np.count_nonzero(inside)
    told = finite_percentiles(signals.norm, (50, 90, 99), among=sound if most else inside)
    if told is None:
        return ""
    return f"; norm quantiles 50/90/99 %: {', '.join(number(value) for value in told)}"


def cut(signals: Signals) -> float:
    """How many times the usual norm is as large as the threshold; NaN where one is not known."""
    clip = clip_of(signals)
    usual = median(signals.norm[judged_rows(signals)])
    return usual / clip.threshold if clip.constant and clip.threshold > 0 else float("nan")


def starves(signals: Signals) -> bool:
    """Does the clip leave next to nothing of each update?

    Not under Adam and its like, whose update does not depend on the gradient's size, and not where
    the optimizer is not known.
    """
    return divides_by_its_size(signals) is False and cut(signals) >= STARVED


def too_few_norms(signals: Signals, window: int) -> str:
    """Why no window of norms says anything in so short a run; empty where one does."""
    few = int(np.count_nonzero(clip_of(signals).seen)) < window
    return f"too few norms ({window} needed)" if few else ""
