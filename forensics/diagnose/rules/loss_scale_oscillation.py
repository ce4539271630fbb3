"""The loss scale swings instead of settling.

What it detects
    Deep falls that come again: 4 or more falls by 4 octaves, each within 100 steps and with growth
    between them, in 20,000 steps (more for short growth intervals). Falls at three times the
    healthy rate of one a growth interval, with growth between them. Or a sawtooth so short that a
    tenth of all steps is lost to it. One finding an episode.

Why it matters
    Each swing throws steps away and spends thousands more at a scale far below what fits, where
    small gradients vanish.

Evidence
    The loss scale at the falls.

Silent when
    The scaler calibrates, or overflows about once a growth interval, at gaps between 0.17 and 2.4
    of it: that is its routine, however short the interval.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.scaling import Scaling
from forensics.diagnose.series import Episode, merged, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent, power_of_two, span, times
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """What swings are more than routine."""

    octaves: float = threshold(4.0, "20 simulated seeds: 3 such falls at most for I ≥ 1,000")
    within: int = threshold(100, "a healthy swing of 4 octaves takes growth intervals")
    few_steps: int = threshold(
        10, "4 halvings in a row, and the steps between them of a hysteresis"
    )
    swings: int = threshold(4, "the healthy maximum is 3 in 20,000 steps")
    short: float = threshold(200.0, "simulated maxima: 2 at I = 200 and 100, 5 at 50, 10 at 20")
    per_steps: int = threshold(20_000, "length of the simulated runs")
    multiple: float = threshold(3.0, "healthy overflows stay within 2.4 per growth interval")
    lost_share: float = threshold(0.1, "a growth interval of 20 loses 1 step in 21 by design")


@rule(thresholds=Thresholds, needs=("scaler_scale",))
def loss_scale_oscillation(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of swings."""
    scaling = signals.scaling
    if not scaling.active or len(scaling.counted_falls) == 0:
        return
    rows = merged(
        np.sort(_swinging(scaling, thresholds)),
        np.sort(_too_often(scaling, thresholds)),
        np.sort(_short_sawtooth(scaling, thresholds)),
    )
    for episode in told_episodes(rows, thresholds.per_steps // 2):
        yield _finding(signals, episode)


def deep_falls(scaling: Scaling, octaves: float, within: int) -> tuple[IntArray, IntArray]:
    """First and last row of each deep fall: so many octaves net within so many steps.

    Falls between which nothing grew are one.
    """
    falls, growths = scaling.counted_falls, scaling.growths
    deep = np.flatnonzero(scaling.octaves_lost(within) >= octaves - 1e-6)
    if len(deep) == 0:
        return falls.rows[deep], falls.rows[deep]
    grown_before = np.searchsorted(growths.rows, falls.rows[deep])
    new = np.concatenate(([True], np.diff(grown_before) > 0))
    firsts = deep[new]
    lasts = deep[np.append(np.flatnonzero(new)[1:], len(deep)) - 1]
    at = scaling.step[falls.rows]
    begins = np.searchsorted(at, at[firsts] - within, side="right")
    return falls.rows[begins], falls.rows[lasts]


def _swinging(scaling: Scaling, thresholds: Thresholds) -> IntArray:
    """Rows of deep falls where too many of them lie in the last 20,000 steps."""
    # Beside a short growth interval, 100 steps hold growth enough to hide a fall.
    within = thresholds.within
    if scaling.interval is not None:
        within = min(within, max(thresholds.few_steps, 2 * scaling.interval))
    firsts, lasts = deep_falls(scaling, thresholds.octaves, within)
    if len(firsts) < thresholds.swings:
        return firsts[:0]
    at = scaling.step[lasts]
    since = np.searchsorted(at, at - thresholds.per_steps, side="right")
    count = np.arange(1, len(at) + 1) - since
    short = np.maximum(1.0, thresholds.short / _interval_at(scaling, lasts, thresholds))
    # A short interval allows more of them, but in proportion to the steps there have been so far.
    elapsed = np.minimum((at - scaling.step[0] + 1) / thresholds.per_steps, 1.0)
    alarms = np.flatnonzero(count >= thresholds.swings * np.maximum(1.0, short * elapsed))
    rows = _reach_back(firsts, lasts, since, alarms)
    if len(rows) == 0:
        return rows
    # Swings that began shallower belong to it, as far back as they come without a long pause.
    shallow, _ = deep_falls(scaling, thresholds.octaves - 1, within)
    earlier = np.append(shallow[shallow < rows.min()], rows.min())
    pauses = np.flatnonzero(np.diff(scaling.step[earlier]) > thresholds.per_steps // 2)
    return np.concatenate((earlier[pauses[-1] + 1 :] if len(pauses) else earlier, rows))


def _interval_at(scaling: Scaling, rows: IntArray, thresholds: Thresholds) -> FloatArray:
    """The growth interval; in a log that leaves steps out, at most what its growths allow."""
    known = scaling.interval_at(rows).astype(np.float64)
    if scaling.interval is not None or scaling.growths.adjacent.all():
        return known
    at, grew = scaling.step[rows], scaling.step[scaling.growths.rows]
    since = np.searchsorted(grew, at - thresholds.per_steps, side="right")
    count = np.searchsorted(grew, at, side="right") - since
    # Growths and falls between two rows cancel: at least five times as many as are seen.
    return np.asarray(np.minimum(known, thresholds.per_steps / np.maximum(5 * count, 1)))


def _reach_back(firsts: IntArray, lasts: IntArray, since: IntArray, alarms: IntArray) -> IntArray:
    """The alarms' rows, and those of the events that were counted for each of them."""
    counted = np.zeros(len(firsts) + 1, dtype=np.int64)
    np.add.at(counted, since[alarms], 1)
    np.add.at(counted, alarms + 1, -1)
    kept = np.cumsum(counted[:-1]) > 0
    return np.concatenate((firsts[kept], lasts[kept]))


def _too_often(scaling: Scaling, thresholds: Thresholds) -> IntArray:
    """Rows of falls that come at a multiple of the healthy rate while the scale grows between."""
    falls = scaling.counted_falls.rows
    interval = scaling.interval
    if interval is None or len(falls) == 0:
        return falls[:0]
    new = np.concatenate(([True], np.diff(scaling.step[falls]) > 10))
    falls = falls[new & (falls >= scaling.interval_row)]
    at = scaling.step[falls]
    since = np.searchsorted(at, at - 10 * interval, side="right")
    count = np.arange(1, len(at) + 1) - since
    grown = np.searchsorted(scaling.growths.rows, falls)
    growths = grown - grown[since] if len(falls) else grown
    often = (count >= 10 * thresholds.multiple) & (2 * growths >= count)
    return _reach_back(falls, falls, since, np.flatnonzero(often))


def _short_sawtooth(scaling: Scaling, thresholds: Thresholds) -> IntArray:
    """Rows of falls of a sawtooth in which a tenth of all steps is lost."""
    falls, growths = scaling.counted_falls.rows, scaling.growths.rows
    up_before = np.searchsorted(growths, falls)
    turns = falls[np.concatenate(([False], np.diff(up_before) > 0))] if len(falls) else falls
    at = scaling.step[turns]
    least = thresholds.within * thresholds.lost_share
    since = np.searchsorted(at, at - thresholds.within, side="right")
    count = np.arange(1, len(at) + 1) - since
    return _reach_back(turns, turns, since, np.flatnonzero(count >= least))


def _finding(signals: Signals, episode: Episode) -> Finding:
    scaling = signals.scaling
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    falls = scaling.falls.where(
        (scaling.falls.rows >= episode.first) & (scaling.falls.rows <= episode.last)
    )
    near = scaling.scales.within(episode.first, episode.last).log2
    low, high = power_of_two(2.0 ** float(near.min())), power_of_two(2.0 ** float(near.max()))
    rate = len(falls) / max(last - first + 1, 1)
    interval = f", growth interval {scaling.interval:,}" if scaling.interval is not None else ""
    return Finding(
        rule="loss-scale-oscillation",
        severity=Severity.WARNING,
        message=f"loss scale swings between {low} and {high} in {span(first, last)}: it fell "
        f"{times(len(falls))}, by {number(float(falls.octaves.sum()))} octaves in all "
        f"({percent(rate)} of the steps{interval})",
        first_step=first,
        last_step=last,
        evidence=(signals.evidence("scaler_scale", signals.scale, falls.rows),),
        cause=_cause(scaling, rate),
        remedy=_remedy(scaling, rate),
    )


def _cause(scaling: Scaling, rate: float) -> str:
    if rate >= 0.05 and scaling.interval is not None and scaling.interval < 20:
        return f"The growth interval of {scaling.interval:,} steps tries a larger scale too often."
    return (
        "A few batches need a far smaller scale than the others: outliers in the data, or a layer "
        "whose activations jump."
    )


def _remedy(scaling: Scaling, rate: float) -> str:
    if rate >= 0.05 and scaling.interval is not None and scaling.interval < 20:
        return "Raise the growth interval to 1,000 or 2,000 steps, as scalers have by default."
    return (
        "Look at the batches of the steps at which it fell; clip or filter outliers, lower the "
        "learning rate if norms jump as well, or run in bf16 where the device has it."
    )
