"""The gradient norm jumps far above what it was.

What it detects
    Norms more than 8 robust standard deviations above those of the past 128 steps (in log space)
    and more than 5 times their median, and what became of them: back within 100 steps, still up,
    or nothing finite after them. Spikes that come 5 in 1,000 steps are told as one episode.

Why it matters
    One spike that is clipped and gone is what healthy runs have now and then. Spikes that come
    again and again, or after which the norm stays up, are how instability begins. Under Adam the
    loss follows a spike of the norm 1 to 8 steps later.

Evidence
    The norms around the spike, and the level before it.

Silent when
    The rise takes more than about 16 steps (that is an explosion), the norms just before or after
    it are as noisy, or fewer than 8 came before. An info when the norm recovers and the loss with
    it, when the log ends before it could, when its level shifts in the first 200 rows, and when a
    crowd of spikes is the heavy tail of the noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.onset import against_growth, breaks_off
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import rate_state, still_warming
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import (
    LOSS_SPIKE,
    NORM_SPIKE,
    SHIFT,
    SpikeGroup,
    level_shifts,
    loss_spikes,
    norm_spikes,
    told_groups,
)
from forensics.diagnose.spikes import Spikes
from forensics.diagnose.whence import whence
from forensics.diagnose.wording import factor, number, span, steps, times
from forensics.frozen import dataclass

FOLLOWS = 8
"""Rows in which the loss follows a spike of the norm under Adam."""


@dataclass(frozen=True)
class Thresholds:
    """What makes a spike, and when spikes are more than that."""

    z: float = threshold(
        NORM_SPIKE[0], "Gaussian norms pass it once in 10^15, t3 norms of 20,000 steps 30 ×"
    )
    ratio: float = threshold(
        NORM_SPIKE[1], "healthy GPT pre-training norms stay within 2.6 × their median"
    )
    many: int = threshold(5, "healthy runs with Gaussian or bursty norms have fewer in 1,000 steps")
    window: int = threshold(1000, "the window of the skip rate, so that episodes agree")
    settling: int = threshold(200, "rows in which a zero-initialised layer takes up its gradients")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",))
def gradient_spike(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode; the quiet ones beyond a dozen are told as one."""
    spikes = signals.derived(norm_spikes, thresholds.z, thresholds.ratio)

    def is_serious(group: SpikeGroup) -> bool:
        return _is_serious(signals, spikes, group, thresholds)

    for group, serious in told_groups(spikes, thresholds, is_serious):
        yield _finding(signals, spikes, group, Severity.WARNING if serious else Severity.INFO)


def _is_serious(signals: Signals, spikes: Spikes, group: SpikeGroup, limits: Thresholds) -> bool:
    if group.crowd and spikes.stand_apart(group.start, group.end):
        return True
    for i in np.flatnonzero(spikes.stays[group.start : group.end + 1]) + group.start:
        row = int(spikes.rows[spikes.first[i]])
        early = row < limits.settling or still_warming(signals, row)
        if spikes.lost[i] or not early or not spikes.flat[i]:
            return True
    return any(_loss_stays_up(signals, spikes, i) for i in range(group.start, group.end + 1))


def _loss_stays_up(signals: Signals, spikes: Spikes, spike: int) -> bool:
    """Did the loss jump with the norm, or up to 8 rows later, and not come back?"""
    losses = signals.derived(loss_spikes, *LOSS_SPIKE)
    row = int(spikes.rows[spikes.first[spike]])
    starts = losses.rows[losses.first]
    with_it = (starts >= row) & (starts <= row + FOLLOWS) & losses.stays
    return bool((with_it & ~level_shifts(signals, losses, *SHIFT)).any())


def _finding(signals: Signals, spikes: Spikes, group: SpikeGroup, severity: Severity) -> Finding:
    first = int(spikes.rows[spikes.first[group.start]])
    last = int(spikes.rows[spikes.last[group.end]])
    several = group.end > group.start
    top = group.start + int(np.argmax(spikes.height[group.start : group.end + 1]))
    peak = int(spikes.rows[spikes.peak[top]])
    around = [first - 2, first - 1, first, peak - 1, peak, peak + 1, peak + 2, last]
    told = _many(signals, spikes, group, top) if several else _one(signals, spikes, top)
    broken = not several and breaks_off(signals, first, last)
    return Finding(
        rule="gradient-spike",
        severity=severity,
        message=told,
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence(
                "grad_l2_pre_clip", signals.norm, around, float(np.exp(spikes.before[top]))
            ),
        ),
        cause=_broken_off(signals, spikes, top) if broken else _cause(signals, first, several),
        remedy=against_growth(signals)
        if broken
        else _back(signals, spikes, top)
        + _remedy(signals, int(spikes.rows[spikes.first[top]]), peak, several),
    )


def _height(signals: Signals, spikes: Spikes, spike: int) -> str:
    """``12.3 at step 8,217, ×20 the level of 0.6 before it``; the step it began at comes first."""
    first, peak = int(spikes.rows[spikes.first[spike]]), int(spikes.rows[spikes.peak[spike]])
    usual = number(float(np.exp(spikes.before[spike])))
    ratio = factor(float(np.exp(spikes.height[spike])))
    value = number(float(signals.norm[peak]))
    text = f"{value} at step {signals.step_at(peak):,}, {ratio} the level of {usual} before it"
    if first == peak:
        return text
    return f"{number(float(signals.norm[first]))} at step {signals.step_at(first):,}, then {text}"


def _one(signals: Signals, spikes: Spikes, spike: int) -> str:
    text = f"the gradient norm jumped to {_height(signals, spikes, spike)}"
    if spikes.lost[spike]:
        return f"{text}, and nearly every step after it is non-finite"
    if spikes.stays[spike]:
        still = factor(float(np.exp(spikes.after[spike] - spikes.before[spike])))
        when = spikes.after_window(spike)
        return f"{text}, and stayed up: {when} it is {still} that level"
    back = spikes.rows_to_recover(spike)
    if spikes.unknown[spike]:
        return f"{text}, and the log ends before it can tell what follows"
    if back is None:
        still = factor(float(np.exp(spikes.after[spike] - spikes.before[spike])))
        return (
            f"{text}, and came back slowly: {spikes.after_window(spike)} it is {still} that level"
        )
    peak = int(spikes.rows[spikes.peak[spike]])
    later = signals.step_at(peak + back) - signals.step_at(peak)
    but = ", but the loss stayed up" if _loss_stays_up(signals, spikes, spike) else ""
    return f"{text}, and was back {steps(later)} later{but}"


def _many(signals: Signals, spikes: Spikes, group: SpikeGroup, top: int) -> str:
    count = times(group.end - group.start + 1)
    first = signals.step_at(int(spikes.rows[spikes.first[group.start]]))
    last = signals.step_at(int(spikes.rows[spikes.last[group.end]]))
    return (
        f"the gradient norm spiked {count} in {span(first, last)}, up to "
        f"{_height(signals, spikes, top)}"
    )


def _broken_off(signals: Signals, spikes: Spikes, spike: int) -> str:
    """The cause where the norm grew on until nothing was finite."""
    grown = factor(float(np.exp(spikes.height[spike])))
    return f"The run was diverging: the norm grew to {grown} its level, until it overflowed."


def _cause(signals: Signals, row: int, several: bool) -> str:
    losses = signals.derived(loss_spikes, *LOSS_SPIKE)
    starts = losses.rows[losses.first]
    near = starts[(starts >= row) & (starts <= row + FOLLOWS)]
    state = rate_state(signals, row)
    rate = f" ({state.text})" if state.text else ""
    if several:
        return (
            f"Norms that spike again and again: a learning rate at the edge of stability, bad "
            f"samples that come round, or an Adam whose second moment lags behind{rate}."
        )
    if len(near) and near[0] == row:
        return f"The loss jumped in the same step: one cause for both, most often the batch{rate}."
    if len(near):
        later = signals.step_at(int(near[0])) - signals.step_at(row)
        return f"The loss follows {steps(later)} later: it shows what this update did{rate}."
    if not state.calm and state.text:
        return f"{state.text[0].upper()}{state.text[1:]}, so the weights may be where it is steep."
    return f"One batch unlike the others, or a steep place in the loss{rate}."


def _back(signals: Signals, spikes: Spikes, spike: int) -> str:
    """To go back before a spike whose update the weights still bear."""
    if not _loss_stays_up(signals, spikes, spike):
        return ""
    at = signals.step_at(int(spikes.rows[spikes.first[spike]]))
    return f"{whence(signals.run, at)}: going on keeps what its update did. "


def _remedy(signals: Signals, row: int, peak: int, several: bool) -> str:
    at = f"{signals.step_at(row):,}"
    if several:
        look = f"Inspect the batches of these steps, that of {at} first; if they are sound, lower "
        look += "the learning rate."
    elif rate_state(signals, row).calm:
        look = f"Inspect the batch of step {at}; if its data are bad, mend or skip them."
    else:
        look = f"Inspect the batch of step {at}, and lower the peak learning rate or lengthen the "
        look += "warm-up."
    clip = clip_of(signals)
    if clip.known and clip.constant and clip.clipped[peak]:
        return f"{look} The clip held this update to a norm of {number(clip.threshold)}."
    return look if clip.known else f"{look} Nothing limits the update here: clip the global norm."
