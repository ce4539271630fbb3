"""The gradient norm grows exponentially.

What it detects
    Block medians of the norm that rise in each of three steps, in log space with a t statistic
    above 8: tenfold over 300 steps, or thirtyfold over any stretch from 15 steps to the length of
    the run. Told is where it sets in, how fast it doubles, where it ends and whether the norm
    came back.

Why it matters
    Exponential growth ends in overflow. The cause is where it sets in, often hundreds of steps
    before the first NaN: a learning rate above the stable range, or weights that have grown.

Evidence
    The norm where growth sets in and at its top, and the loss in the same steps.

Silent when
    The norm grows in the first rows of a run (500, or twice the warm-up) while the loss is no
    worse for it, as layers that start at zero do; or the rise is one step (a spike or a new
    level). Growth that went back by itself and left no damage is an info.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.norm_growth import GROWTH, Growth, find_growth, is_harmful
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import Phase, rate_state, still_warming
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import MEMORISED, loss_level
from forensics.diagnose.wording import every, factor, number
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """How far and how surely a norm must grow."""

    factor: float = threshold(GROWTH[0], "over 300 steps: 0 of 360 healthy simulated runs")
    other: float = threshold(GROWTH[1], "over any other stretch: drifting norms reach 10 by chance")
    t: float = threshold(GROWTH[2], "0 of 360 healthy simulated runs")
    early: int = threshold(500, "rows in which zero-initialised layers take up their gradients")
    extreme: float = threshold(1000.0, "three decades: nothing healthy grows that far")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",))
def gradient_explosion(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of growth."""
    found = signals.derived(find_growth, thresholds.factor, thresholds.other, thresholds.t)
    for growth in found:
        severity = _severity(signals, growth, thresholds)
        if severity is not None:
            yield _finding(signals, growth, severity)


def _severity(signals: Signals, growth: Growth, limits: Thresholds) -> Severity | None:
    damage = is_harmful(signals, growth) or growth.rise > np.log(limits.extreme)
    if growth.returned:
        return Severity.WARNING if damage else Severity.INFO
    if damage:
        return Severity.ERROR
    if _is_fitted(signals, growth):
        return Severity.INFO
    early = growth.first < limits.early or still_warming(signals, growth.first)
    return None if early else Severity.WARNING


def _is_fitted(signals: Signals, growth: Growth) -> bool:
    """Is the loss below a twentieth of its start at the top? There norms differ by decades."""
    at_top = median(signals.loss[max(growth.first, growth.top - 9) : growth.top + 10])
    return bool(abs(at_top) < MEMORISED * loss_level(signals).start)


def _finding(signals: Signals, growth: Growth, severity: Severity) -> Finding:
    middle = (growth.first + growth.top) // 2
    around = [growth.first, (growth.first + middle) // 2, middle, (middle + growth.top) // 2]
    around += [growth.top, growth.top + 1]
    lasts = not growth.returned
    return Finding(
        rule="gradient-explosion",
        severity=severity,
        message=_message(signals, growth),
        first_step=signals.step_at(growth.first),
        last_step=signals.last_step if lasts else signals.step_at(growth.last),
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, around, float(np.exp(growth.level))),
            signals.evidence("loss", signals.loss, around),
        ),
        cause=_cause(signals, growth),
        remedy=_remedy(signals, growth),
    )


def _message(signals: Signals, growth: Growth) -> str:
    first, top = signals.step_at(growth.first), signals.step_at(growth.top)
    level = float(np.exp(growth.level))
    doubling = float(np.log(2)) / growth.slope if growth.slope > 0 else float("inf")
    per_row = (top - first) / max(growth.top - growth.first, 1)
    pace = f", doubling {every(max(1, round(doubling * per_row)))}" if doubling < 1e6 else ""
    text = (
        f"the gradient norm grew {factor(float(np.exp(growth.rise)))} from step {first:,} to "
        f"{top:,}, from {number(level)} to {number(float(signals.norm[growth.top]))}{pace}"
    )
    if growth.returned:
        return f"{text}, and came back by step {signals.step_at(growth.last):,}"
    bad = np.flatnonzero((signals.norm_bad | signals.loss_bad)[growth.top + 1 :])
    if len(bad):
        return f"{text}; it is non-finite at step {signals.step_at(growth.top + 1 + int(bad[0])):,}"
    return text


def _cause(signals: Signals, growth: Growth) -> str:
    state = rate_state(signals, growth.first)
    worse = is_harmful(signals, growth)
    along = "the loss rises with it" if worse else "the loss does not show it yet"
    if state.phase in (Phase.WARMING_UP, Phase.AT_PEAK, Phase.JUMPED) or growth.first < 20:
        told = f" ({state.text.replace('was calm', 'was constant')})" if state.text else ""
        return f"The learning rate is above what these weights bear{told}; {along}."
    told = f" while {state.text}" if state.text else ""
    return (
        f"Weights or activations grow step by step{told}, attention logits or a scale that nothing "
        f"holds are the usual ones; {along}."
    )


def _remedy(signals: Signals, growth: Growth) -> str:
    since = f"{signals.step_at(growth.first):,}"
    state = rate_state(signals, growth.first)
    if growth.first < 20:
        text = "Start again with a learning rate several times lower, or a longer warm-up"
    elif state.phase in (Phase.WARMING_UP, Phase.AT_PEAK, Phase.JUMPED):
        text = f"Resume from before step {since} with a lower peak learning rate"
    else:
        text = f"Resume from before step {since}, and find which layer grows first (snapshots tell)"
    clip = clip_of(signals)
    if clip.known and clip.constant and clip.clipped[growth.top]:
        return (
            f"{text}. The clip at {number(clip.threshold)} was in force and bounds each update, "
            f"not the growth."
        )
    return f"{text}." if clip.known else f"{text}; clip the global norm, which nothing does here."
