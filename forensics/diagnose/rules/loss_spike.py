"""The loss jumps far above its course.

What it detects
    Losses more than 8 robust standard deviations above those of the past 128 steps or above the
    last three (in log space, so that an early decay hides nothing), up by 5 % and by 0.1 (by a
    tenth of the first losses where those are below 1), and what became of them: back fast (within
    100 steps), back slowly, or not at all. Spikes that come 5 in 1,000 steps are one episode.
    Losses below 0, too, a thousand times as far from it as those before and those at the start.

Why it matters
    Single spikes that recover cost little. Spikes that do not recover, or that come more and more
    often, cost the run: what went wrong lies at the step where they start, or up to 8 steps
    before it in the gradient norm.

Evidence
    The losses around the spike, the level before it, and the gradient norm in the same steps.

Silent when
    Fewer than 8 losses came before, the losses just before or after it are as noisy (noise grows
    as a loss falls from its start), or the rise takes more than about 16 steps (that is a
    divergence). An info when the loss recovers, when the log ends before it could, when its level
    shifts (a curriculum, other data), when a crowd of spikes is the heavy tail of the noise, when
    the loss is below a twentieth of its start (there single samples tower over the rest), or
    beside rewards, which measure what the loss of a policy gradient does not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.norm_growth import grows_all_along
from forensics.diagnose.plunges import plunge_finding
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import rate_state
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import (
    LOSS_SPIKE,
    MEMORISED,
    NORM_SPIKE,
    SHIFT,
    LossLevel,
    SpikeGroup,
    level_shifts,
    loss_level,
    loss_spikes,
    norm_spikes,
    told_groups,
)
from forensics.diagnose.spikes import Spikes
from forensics.diagnose.wording import factor, number, span, steps, times
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray

FAST = 100
"""Rows in which a fast recovery is done."""
FOLLOWS = 8
"""Rows after a spike of the norm in which Adam lets the loss follow (its second moment lags)."""


@dataclass(frozen=True)
class Thresholds:
    """What makes a spike, and when spikes are more than that."""

    z: float = threshold(LOSS_SPIKE[0], "Gaussian noise passes it once in 10^15 steps")
    share: float = threshold(LOSS_SPIKE[1], "healthy pre-training noise is 1 to 3 % of the loss")
    rise: float = threshold(
        LOSS_SPIKE[2], "nats; less is of no consequence at the usual losses of 1 to 10"
    )
    lasting: float = threshold(SHIFT[0], "rise that loss-divergence takes for one; less is a shift")
    level: float = threshold(
        SHIFT[1], "data can be harder by half; no data make a loss rise further"
    )
    many: int = threshold(5, "healthy runs with Gaussian or bursty noise have fewer in 1,000 steps")
    window: int = threshold(1000, "the window of the skip rate, so that episodes agree")
    known: int = threshold(16, "fewer losses before it do not tell the level it might return to")
    mixture: float = threshold(0.02, "share of all steps; instability comes in bursts, data do not")
    edge: float = threshold(
        0.05, "share of the run in which a mixture must have begun and not ended"
    )
    absurd: float = threshold(
        1000.0, "times the loss at the start, up or down: no sound sample reaches it"
    )
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("loss",))
def loss_spike(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode; the quiet ones beyond a dozen are told as one."""
    spikes = signals.derived(loss_spikes, thresholds.z, thresholds.share, thresholds.rise)
    level = loss_level(signals)
    shifts = level_shifts(signals, spikes, thresholds.lasting, thresholds.level)

    wild = _wild(spikes, level, thresholds.absurd)

    def is_serious(group: SpikeGroup) -> bool:
        return wild > 1 or _is_serious(spikes, level, shifts, group, thresholds)

    plunge = plunge_finding(signals, thresholds.z, thresholds.absurd)
    if plunge is not None:
        yield plunge
    for group, serious in told_groups(spikes, thresholds, is_serious):
        top = group.start + int(np.argmax(spikes.height[group.start : group.end + 1]))
        view = _View(signals, spikes, level, group, top, bool(shifts[top]), wild)
        told = serious and not no_measure(signals)
        yield _finding(view, Severity.WARNING if told else Severity.INFO)


def _is_serious(
    spikes: Spikes, level: LossLevel, shifts: BoolArray, group: SpikeGroup, limits: Thresholds
) -> bool:
    inside = slice(group.start, group.end + 1)
    known = spikes.lost | (spikes.first >= limits.known)
    if (spikes.stays & ~shifts & known)[inside].any():
        return True
    before = level.back(spikes.before[inside])
    peaks = level.back(spikes.values[spikes.peak[inside]])
    if (peaks > limits.absurd * np.maximum(level.start, np.abs(before))).any():
        return True
    memorised = median(before) < MEMORISED * level.start
    if not group.crowd or memorised or _is_mixture(spikes, level, group, limits):
        return False
    return spikes.stand_apart(group.start, group.end)


def _wild(spikes: Spikes, level: LossLevel, absurd: float) -> int:
    """How many spikes of the run are higher than any sound sample, by the loss at the start."""
    before, peaks = level.back(spikes.before), level.back(spikes.values[spikes.peak])
    return int((peaks > absurd * np.maximum(level.start, np.abs(before))).sum())


def _is_mixture(spikes: Spikes, level: LossLevel, group: SpikeGroup, limits: Thresholds) -> bool:
    """Are some of the data harder than the rest: so from start to end, while the loss falls?"""
    inside = slice(group.start, group.end + 1)
    first, last = int(spikes.first[group.start]), int(spikes.last[group.end])
    count = len(spikes.values)
    edge = limits.edge * count
    often = group.end - group.start + 1 > limits.mixture * count
    before = level.back(spikes.before[inside])
    tenth = max(len(before) // 10, 1)
    falls = median(before[-tenth:]) < 0.9 * median(before[:tenth])
    return often and first < edge and last >= count - edge and falls


@dataclass(frozen=True)
class _View:
    """One episode to tell: its spikes, the highest of them, whether that is a level shift.

    ``wild`` counts the run's spikes to heights that no sound sample reaches.
    """

    signals: Signals
    spikes: Spikes
    level: LossLevel
    group: SpikeGroup
    top: int
    shift: bool
    wild: int

    @property
    def several(self) -> bool:
        return self.group.end > self.group.start

    @property
    def first(self) -> int:
        """Its first row."""
        return int(self.spikes.rows[self.spikes.first[self.group.start]])

    @property
    def last(self) -> int:
        """Its last row."""
        return int(self.spikes.rows[self.spikes.last[self.group.end]])

    @property
    def peak(self) -> int:
        """The row of its highest value."""
        return int(self.spikes.rows[self.spikes.peak[self.top]])

    @property
    def begins(self) -> int:
        """The row in which the highest spike began: its batch is the one to look at."""
        return int(self.spikes.rows[self.spikes.first[self.top]])

    @property
    def before(self) -> float:
        """The loss before the highest spike."""
        return float(self.level.back(self.spikes.before[self.top]))


def _finding(view: _View, severity: Severity) -> Finding:
    signals, peak = view.signals, view.peak
    around = [view.first - 2, view.first - 1, view.first, peak - 1, peak, peak + 1, view.last]
    return Finding(
        rule="loss-spike",
        severity=severity,
        message=_many(view) if view.several else _one(view),
        first_step=signals.step_at(view.first),
        last_step=signals.step_at(view.last),
        evidence=(
            signals.evidence("loss", signals.loss, around, view.before),
            signals.evidence("grad_l2_pre_clip", signals.norm, around),
        ),
        cause=_cause(view),
        remedy=_remedy(view),
    )


def _height(view: _View) -> str:
    """``5.07 at step 919, from 3.68 (×1.38)``; where it goes on rising: ``, up to 9 at 921``."""
    signals, usual = view.signals, view.before

    def ratio(value: float) -> str:
        return f" ({factor(value / usual)})" if usual > 0 else ""

    value, top = float(signals.loss[view.begins]), float(signals.loss[view.peak])
    text = f"{number(value)} at step {signals.step_at(view.begins):,}, from {number(usual)}"
    if view.peak == view.begins:
        return f"{text}{ratio(value)}"
    return f"{text}, up to {number(top)}{ratio(top)} at {signals.step_at(view.peak):,}"


def _one(view: _View) -> str:
    spikes, top = view.spikes, view.top
    after = number(float(view.level.back(spikes.after[top])))
    if view.shift:
        return f"the loss shifted to {_height(view)}, and is {after} {spikes.after_window(top)}"
    text = f"the loss jumped to {_height(view)}"
    if spikes.lost[top]:
        return f"{text}, and nearly every step after it is non-finite"
    if spikes.stays[top]:
        return f"{text}, and does not recover: it is {after} {spikes.after_window(top)}"
    back = spikes.rows_to_recover(top)
    if spikes.unknown[top]:
        return f"{text}, and the log ends before it can tell what follows"
    if spikes.falls_short(top, view.level.back):
        ratio = factor(float(view.level.back(spikes.after[top])) / view.before)
        return (
            f"{text}, and did not come back: it is {after} {spikes.after_window(top)}, {ratio} the "
            f"level before"
        )
    if back is None:
        return f"{text}, and came back slowly: it is {after} {spikes.after_window(top)}"
    later = view.signals.step_at(view.peak + back) - view.signals.step_at(view.peak)
    return f"{text}, and recovered {'within' if back <= FAST else 'slowly, in'} {steps(later)}"


def _many(view: _View) -> str:
    count = times(view.group.end - view.group.start + 1)
    where = span(view.signals.step_at(view.first), view.signals.step_at(view.last))
    return f"the loss spiked {count} in {where}, up to {_height(view)}"


def _cause(view: _View) -> str:
    if view.shift:
        return "Other data or another mixture from here on is the usual reason (a curriculum)."
    state = rate_state(view.signals, view.first)
    rate = f" ({state.text})" if state.text else ""
    if view.wild > 1:
        constant = rate.replace("was calm", "was constant")
        return (
            f"The loss left all bounds {times(view.wild)}: a learning rate that is too high is the "
            f"first suspect{constant}, and a sample that comes round the second."
        )
    if (grown := view.signals.derived(grows_all_along)) is not None:
        return (
            f"The gradient norm grows all along, from {number(grown[0])} to {number(grown[1])}, "
            f"which no batch does: gradients that add up because zero_grad() is missing, or a "
            f"learning rate that is too high{rate.replace('was calm', 'was constant')}."
        )
    norms = view.signals.derived(norm_spikes, *NORM_SPIKE)
    starts = norms.rows[norms.first]
    near = starts[(starts <= view.first) & (starts >= view.first - FOLLOWS)]
    inside = slice(view.first, view.last + 1)
    if not len(near) and bool(view.signals.skipped[inside].all()):
        who = "Batches" if view.several else "One batch"
        return f"{who} unlike the others: the loop skipped every such step, no update came of it."
    if len(near) and near[-1] < view.first:
        earlier = view.signals.step_at(view.first) - view.signals.step_at(int(near[-1]))
        return f"The gradient norm spiked {steps(earlier)} earlier: that update is behind it{rate}."
    if len(near):
        return (
            f"The gradient norm spiked in the same step: one cause for both, most often the "
            f"batch{rate}."
        )
    if view.several:
        return f"A learning rate at the edge of stability, or bad samples that come round{rate}."
    if state.text and not state.calm:
        return f"{state.text[0].upper()}{state.text[1:]}: the step may have been too large."
    return f"One batch unlike the others, or an update that went too far{rate}."


def _remedy(view: _View) -> str:
    at = f"{view.signals.step_at(view.begins):,}"
    if view.shift:
        since = view.signals.step_at(view.first)
        return f"Nothing to do if the data change at step {since:,}; else look there."
    if view.wild > 1:
        return (
            f"Start again with a learning rate several times lower, and clip the gradient norm. If "
            f"single steps still jump, inspect their batches, as that of step {at}."
        )
    if view.signals.derived(grows_all_along) is not None:
        return (
            "Check that zero_grad() is called once before each step's first backward; if it is, "
            "start again with a lower learning rate."
        )
    if view.several:
        return (
            f"Inspect the batches of these steps, that of {at} first; if they are sound, lower the "
            f"learning rate or, under Adam, beta2."
        )
    if not rate_state(view.signals, view.first).calm:
        return f"Inspect the batch of step {at}; lower the peak learning rate or warm up longer."
    return (
        f"Inspect the batch of step {at} and skip it if it is bad; if the run does not come back, "
        f"resume from before it without that batch."
    )
