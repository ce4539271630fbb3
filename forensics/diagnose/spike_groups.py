"""Which spikes are told together, and the spikes of the two series that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from forensics.diagnose.baseline import WINDOW
from forensics.diagnose.blocks import mapped, mask_where
from forensics.diagnose.finite import FiniteSeries, KeptRows
from forensics.diagnose.schedule import REACH
from forensics.diagnose.series import MAD_TO_SIGMA, median, row_medians
from forensics.diagnose.signals import Signals
from forensics.diagnose.spikes import NEAR, Spikes, find_spikes
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray


class Limits(Protocol):
    """What both spike rules have among their thresholds."""

    @property
    def many(self) -> int:
        """Spikes that make a crowd."""
        ...

    @property
    def window(self) -> int:
        """Rows that a crowd's spikes lie in."""
        ...

    @property
    def told(self) -> int:
        """Findings of one severity at most."""
        ...


NORM_SPIKE = (8.0, 5.0)
"""Robust standard deviations and ratio that make a spike of the norm."""
LOSS_SPIKE = (8.0, 0.05, 0.1)
"""Robust standard deviations, share and rise that make a spike of the loss."""
SHIFT = (0.25, 0.6)
"""Rises of the loss, as shares: less is always a new level, more never is."""
MEMORISED = 0.05
"""Below this share of its start a loss says little by its jumps: single hard samples tower over
the many that are known by heart."""
_UNIT = 0.1
_LARGEST = 1e300
"""Losses beyond are taken for it, so that nothing computed from them overflows."""
_START = 8
_EARLY = 64


@dataclass(frozen=True)
class SpikeGroup:
    """Spikes that are told as one finding: a single one, a crowd, or the many that are left.

    Attributes:
        start: first spike.
        end: last spike.
        crowd: it is a crowd, so many in so many rows.
        folded: how many groups it stands for.
    """

    start: int
    end: int
    crowd: bool
    folded: int = 1


def groups_of(spikes: Spikes, many: int, window: int) -> list[SpikeGroup]:
    """The spikes in order, crowds (``many`` in ``window`` rows) as one group each."""
    if len(spikes) == 0:
        return []
    crowded = spikes.crowded(many, window)
    near = np.diff(spikes.rows[spikes.first]) < window
    cuts = np.flatnonzero(~(crowded[1:] & crowded[:-1] & near)) + 1
    starts = np.append(0, cuts).tolist()
    ends = np.append(cuts - 1, len(spikes) - 1).tolist()
    return [SpikeGroup(a, b, bool(crowded[a])) for a, b in zip(starts, ends, strict=True)]


def fold(groups: list[SpikeGroup], most: int) -> list[SpikeGroup]:
    """At most ``most`` groups: the last one stands for all that follow it too."""
    if len(groups) <= most:
        return groups
    first = groups[most - 1]
    rest = SpikeGroup(first.start, groups[-1].end, False, len(groups) - most + 1)
    return [*groups[: most - 1], rest]


def told_groups(
    spikes: Spikes,
    limits: Limits,
    is_serious: Callable[[SpikeGroup], bool],
) -> Iterator[tuple[SpikeGroup, bool]]:
    """Each group to tell and whether it is serious; serious ones never hide behind quiet ones."""
    groups = groups_of(spikes, limits.many, limits.window)
    serious = [is_serious(group) for group in groups]
    for wanted in (True, False):
        chosen = [g for g, s in zip(groups, serious, strict=True) if s is wanted]
        for group in fold(chosen, limits.told):
            yield group, wanted


@dataclass(frozen=True, eq=False)
class LossLevel:
    """The loss in a space that is logarithmic for large values and linear about zero.

    Attributes:
        unit: where the one turns into the other: 0.1, or a tenth of the first losses if they are
            all positive and below 1. The rise that matters has the same size.
        start: median size of the first 8 finite losses; NaN where there are none.
        series: asinh(loss / unit) of the finite losses that say something.
    """

    unit: float
    start: float
    series: FiniteSeries

    def back(self, values: FloatArray) -> FloatArray:
        """The losses of some values."""
        return np.sinh(values) * self.unit

    def along(self, rows: KeptRows) -> FloatArray:
        """The series at all finite losses' rows: NaN at those that say nothing."""
        if len(rows) == len(self.series):
            return self.series.values
        values = np.full(len(rows), np.nan)
        values[rows.before(self.series.rows[:])] = self.series.values
        return values


def loss_level(signals: Signals) -> LossLevel:
    """The run's losses in that space; what comes later changes nothing about earlier rows."""
    return signals.derived(_loss_level)


def _loss_level(signals: Signals) -> LossLevel:
    loss = signals.finite_loss
    early = loss.values[:_EARLY]
    start = median(np.abs(early[:_START]))
    positive = start > 0 and bool((early > 0).all())
    unit = _UNIT * min(1.0, start) if positive else _UNIT
    # A batch without labels has a loss and a norm of exactly 0: it says nothing about the level.
    silent = mask_where(len(signals), lambda at: (signals.loss[at] == 0) & (signals.norm[at] == 0))
    told = FiniteSeries.of(np.where(silent, np.nan, signals.loss)) if silent.any() else loss
    values = mapped(
        lambda losses: np.arcsinh(np.clip(losses, -_LARGEST, _LARGEST) / unit), told.values
    )
    return LossLevel(unit, start, FiniteSeries(told.rows, values))


def _bad(signals: Signals) -> BoolArray:
    """Non-finite rows that speak of the weights: an overflow that a scaler skips does not."""
    overflow = signals.norm_bad & ~signals.skipped if signals.scaling.active else signals.norm_bad
    return signals.loss_bad | overflow


def norm_spikes(signals: Signals, z: float, ratio: float) -> Spikes:
    """Spikes of the gradient norm, at least ``ratio`` times the level before."""

    def large(values: FloatArray, levels: FloatArray) -> BoolArray:
        return np.asarray(values - levels > np.log(ratio), dtype=bool)

    return find_spikes(signals.log_norm, _bad(signals), large, z)


def loss_spikes(signals: Signals, z: float, share: float, rise: float) -> Spikes:
    """Spikes of the loss: up by ``share`` of the level and by ``rise`` units of ten."""
    level = loss_level(signals)

    def large(values: FloatArray, levels: FloatArray) -> BoolArray:
        high, low = level.back(values), level.back(levels)
        least = np.maximum(share * np.abs(low), rise * level.unit / _UNIT)
        return np.asarray(high - low > least, dtype=bool)

    spikes = find_spikes(level.series, _bad(signals), large, z)
    return _kept(spikes, _above_signed(level, spikes, z))


def _above_signed(level: LossLevel, spikes: Spikes, z: float) -> BoolArray:
    """Which spikes from below zero stand out in the loss itself too, above the 128 before?

    About zero the logarithmic space stretches the noise many times: a loss of either sign (a
    GAN's, an advantage) that drifts across it would spike at each crossing.
    """
    kept = np.ones(len(spikes), dtype=bool)
    below = np.flatnonzero(spikes.before < 0)
    index = spikes.first[below][:, None] - np.arange(WINDOW, 0, -1)
    past = np.where(index >= 0, level.back(spikes.values[np.maximum(index, 0)]), np.nan)
    usual = row_medians(past)
    noise = MAD_TO_SIGMA * row_medians(np.abs(past - usual[:, None]))
    start = spikes.first[below][:, None] + np.arange(NEAR)  # a drift takes longer than these
    top = spikes.values[np.minimum(start, len(spikes.values) - 1)].max(axis=1, initial=-np.inf)
    kept[below] = level.back(top) - usual > z * noise
    return kept


def _kept(spikes: Spikes, kept: BoolArray) -> Spikes:
    if kept.all():
        return spikes
    names = ("first", "last", "peak", "before", "height", "after", "flat", "lost")
    chosen: dict[str, Any] = {name: getattr(spikes, name)[kept] for name in names}
    return replace(spikes, **chosen)


def level_shifts(signals: Signals, spikes: Spikes, lasting: float, most: float) -> BoolArray:
    """Spikes of the loss whose end is a new level: without a peak, or little higher than before.

    Where the gradient norm spikes in the same steps it is no change of the data. Whether a new
    level is trouble is for the whole run to tell (loss-divergence).
    """
    level = loss_level(signals)
    before, after = level.back(spikes.before), level.back(spikes.after)
    rise = after - before
    little = rise < lasting * np.abs(before)
    flat = spikes.is_shift & (rise < most * np.maximum(np.abs(before), MEMORISED * level.start))
    flat &= ~norm_spiked(signals, spikes.rows[spikes.first])
    return np.asarray(spikes.stays & ~spikes.lost & (flat | little), dtype=bool)


def spike_near(signals: Signals, row: int) -> int | None:
    """The row of the first spike of loss or norm that begins in the next few rows, or None."""
    found = []
    for spikes in (
        signals.derived(loss_spikes, *LOSS_SPIKE),
        signals.derived(norm_spikes, *NORM_SPIKE),
    ):
        starts = spikes.rows[spikes.first]
        found += starts[(starts >= row) & (starts <= row + REACH)][:1].tolist()
    return min(found, default=None)


def norm_spiked(signals: Signals, rows: IntArray, reach: int = 8) -> BoolArray:
    """At which rows does a spike of the gradient norm begin, or did up to ``reach`` rows before?"""
    norms = signals.derived(norm_spikes, *NORM_SPIKE)
    starts = norms.rows[norms.first]
    if len(starts) == 0:
        return np.zeros(len(rows), dtype=bool)
    at = np.searchsorted(starts, rows + 1, side="right") - 1
    return np.asarray((at >= 0) & (rows - starts[np.maximum(at, 0)] <= reach), dtype=bool)
