"""Bad steps come back at equal distances: the same data come round.

What it detects
    Steps where loss or gradient becomes non-finite, or where the loss spikes, that are equally
    spaced to within one step, three of them or more: as many as it takes to rule out chance.

Why it matters
    A fixed number of steps apart lies the length of the data set. One bad sample is cheaper to
    find than a numerical fault, and skipping its step only postpones it to the next epoch.

Evidence
    The loss (or the norm) at the bad steps.

Silent when
    The overflows are the loss scaler's (they follow its growths), the learning rate restarts at
    these steps, the spacing is below 8 steps (that is no data set), or chance could do it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import jumps
from forensics.diagnose.series import runs_of
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import LOSS_SPIKE, NORM_SPIKE, loss_spikes, norm_spikes
from forensics.diagnose.wording import every, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """When equal distances are no chance."""

    least: int = threshold(3, "two bad steps have only one distance")
    slack: int = threshold(1, "steps; an epoch that is no whole number of batches wobbles by one")
    period: int = threshold(8, "steps; no data set is shorter, but oscillations are")
    chance: float = threshold(0.01, "expected chance findings a run, for non-finite steps")
    spikes: float = threshold(0.001, "the same for spikes, which healthy runs have too")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("loss|grad_l2_pre_clip",))
def recurring_sample(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding a series of equally spaced bad steps."""
    bad = _onsets((signals.loss_bad | signals.norm_bad) & ~_scalers(signals))
    told = list(_series(signals, bad, thresholds, thresholds.chance))
    for first, last in told[: thresholds.told]:
        yield _finding(signals, bad[first : last + 1], "non-finite")
    spikes = signals.derived(loss_spikes, *LOSS_SPIKE)
    onsets = spikes.rows[spikes.first]
    onsets = onsets[~_near(onsets, jumps(signals))]
    batches = _led_by_the_norm(signals, onsets)
    for first, last in list(_series(signals, batches, thresholds, thresholds.spikes))[:12]:
        yield _finding(signals, batches[first : last + 1], "a spike")


def _led_by_the_norm(signals: Signals, onsets: IntArray) -> IntArray:
    """The rows of the batches: where the norm spiked a row before the loss, it met the batch."""
    norms = signals.derived(norm_spikes, *NORM_SPIKE)
    rows = norms.rows[norms.first]
    led = np.isin(onsets - 1, rows) & ~np.isin(onsets, rows)
    return np.asarray(np.where(led, onsets - 1, onsets), dtype=np.int64)


def _onsets(bad: BoolArray) -> IntArray:
    """First row of each run of bad rows."""
    return runs_of(bad)[0]


def _scalers(signals: Signals) -> BoolArray:
    """Rows whose overflow is routine for a loss scaler, or follows a growth of the scale."""
    scaling = signals.scaling
    own = scaling.routine.copy()
    overflow = np.flatnonzero(signals.norm_bad & ~signals.loss_bad)
    if len(scaling.growths) and len(overflow):
        at = np.searchsorted(scaling.growths.rows, overflow, side="right") - 1
        since = overflow - scaling.growths.rows[np.maximum(at, 0)]
        # What the larger scale does not survive overflows soon, beside an interval of quiet.
        soon = np.maximum(scaling.interval_at(overflow) // 10, 3)
        own[overflow[(at >= 0) & (since <= soon)]] = True
    return own


def _near(rows: IntArray, others: IntArray, reach: int = 8) -> BoolArray:
    """Which rows lie at most ``reach`` after (or one before) one of the others."""
    at = np.searchsorted(others, rows + 1, side="right") - 1
    return (at >= 0) & (rows - others[np.maximum(at, 0)] <= reach) if len(others) else at >= 0


def _series(
    signals: Signals, rows: IntArray, limits: Thresholds, chance: float
) -> Iterator[tuple[int, int]]:
    """First and last index of each stretch of equally spaced rows that is no chance.

    The chance that the next of n rows falls where it is expected is about 1 ÷ spacing, or 3 ÷
    spacing to within a step; a stretch of k rows needs k - 2 such strokes of luck, at any of the
    rows so far.
    """
    at = signals.step[rows]
    spacing = np.diff(at)
    if len(spacing) < limits.least - 1:
        return
    differ = np.abs(np.diff(spacing))
    same = (differ <= limits.slack) & (spacing[1:] >= limits.period)
    if signals.scaling.active:
        same &= np.abs(spacing[1:] - signals.scaling.interval_at(rows[2:])) > 2
    first, last = runs_of(same)
    wobbles = np.concatenate(([0], np.cumsum(differ > 0)))
    exact = wobbles[last + 1] == wobbles[first]
    luck = np.where(exact, 1, 2 * limits.slack + 1) / np.maximum(spacing[first], 1)
    expected = luck ** (last - first + 1) * (last + 2)
    for a, b in zip(
        first[expected < chance].tolist(), last[expected < chance].tolist(), strict=True
    ):
        yield a, b + 2


def _finding(signals: Signals, rows: IntArray, kind: str) -> Finding:
    at = signals.step[rows]
    period = round(float(at[-1] - at[0]) / (len(at) - 1))
    listed = ", ".join(f"{int(step):,}" for step in at[:4]) + (" …" if len(at) > 4 else "")
    told = {"loss": signals.loss, "grad_l2_pre_clip": signals.norm}
    name = "loss" if signals.has("loss") else "grad_l2_pre_clip"
    if kind == "a spike" and (_led_by_the_norm(signals, rows + 1) == rows).all():
        name = "grad_l2_pre_clip"
    return Finding(
        rule="recurring-sample",
        severity=Severity.WARNING,
        message=(
            f"bad steps ({kind}) come back {every(period)}, {len(at)} times in a row: {listed}"
        ),
        first_step=int(at[0]),
        last_step=int(at[-1]),
        evidence=(signals.evidence(name, told[name], rows),),
        cause=(
            f"The same data come round: {steps(period)} are most likely one pass over them"
            f"{_epochs(signals, rows)}."
        ),
        remedy=(
            f"Find the batch of step {int(at[0]):,} (and of {int(at[1]):,}: what both contain); "
            f"mend or drop that sample.{_half(signals, rows)}"
        ),
    )


def _half(signals: Signals, rows: IntArray) -> str:
    """What else it can be where values are held in fp16, as a sentence."""
    if signals.precision != "fp16" or not (signals.loss_bad | signals.norm_bad)[rows].any():
        return ""
    return (
        " In fp16 a sample may be sound and merely large: beyond 65,504 a value becomes inf. Look "
        "at the largest feature; scale or clamp it, or use bf16."
    )


def _epochs(signals: Signals, rows: IntArray) -> str:
    """What the epoch column says about it, as a clause."""
    epoch = signals.column("epoch")[rows]
    if len(epoch) < 2 or not np.isfinite(epoch).all():
        return ""
    whole = np.abs(np.diff(epoch) - np.round(np.diff(epoch))) < 0.02
    fits = bool(whole.all()) and bool((np.round(np.diff(epoch)) >= 1).all())
    return ", and the epoch column says the same" if fits else ""
