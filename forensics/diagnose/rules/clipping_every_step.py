"""Nearly every step is clipped.

What it detects
    Windows of 300 norms of which more than 95 % are clipped, after twice the warm-up: the share,
    the threshold (run.json's, or read from the norms after the clip), and the quantiles of the
    norm before it, as facts.

Why it matters
    When every step is clipped, the clip is no safety net but part of the step size: each update
    has the same length whatever the gradient says. Many sound recipes work so (fine-tuning,
    reinforcement learning); in others a summed loss or an undivided accumulation is behind it.

Evidence
    The norm before the clip where it begins, against the threshold.

Silent when
    Neither run.json nor norms after the clip tell what was clipped. It is an info, and a warning
    only where the loss never fell or rises for good meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forensics.diagnose.clipping import clip_of, every_step, quantiles
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.loss_trend import NO_GAIN, RISE, find_rise, never_learned
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent


@dataclass(frozen=True)
class Thresholds:
    """When clipping is the rule."""

    window: int = threshold(300, "norms; healthy runs of 20,000 steps have such a window too")
    share: float = threshold(0.95, "of a window")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",), parts=("clip",))
def clipping_every_step(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding, over all such windows."""
    rows = every_step(signals, thresholds.window, thresholds.share)
    if len(rows) == 0:
        return
    clip = clip_of(signals)
    first, last = int(rows[0]), int(rows[-1])
    inside = clip.seen[first : last + 1]
    share = float(clip.clipped[first : last + 1].sum() / max(int(inside.sum()), 1))
    beside = _trouble(signals)
    limit = clip.threshold if clip.constant else None
    yield Finding(
        rule="clipping-every-step",
        severity=Severity.WARNING if beside else Severity.INFO,
        message=(
            f"{percent(share)} of the steps from {signals.step_at(first):,} to "
            f"{signals.step_at(last):,} are clipped{_at(signals)}{quantiles(signals)}{beside}"
        ),
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(signals.evidence("grad_l2_pre_clip", signals.norm, rows[:12], limit),),
        cause=(
            "Normal in fine-tuning and reinforcement learning. Elsewhere a loss that is summed "
            "instead of averaged, or accumulation that does not divide it."
        ),
        remedy=(
            "First check that the loss is a mean and is divided by the accumulation count. The "
            "quantiles are facts about this run, not a threshold to take."
        ),
    )


def _at(signals: Signals) -> str:
    clip = clip_of(signals)
    if not clip.constant:
        return " (to no constant norm)"
    return f" at {number(clip.threshold)}" + ("" if clip.stated else " (read from the norms)")


def _trouble(signals: Signals) -> str:
    """What goes wrong beside it, as a clause; empty where nothing does."""
    rise = signals.derived(find_rise, *RISE)
    if rise is not None and not rise.falling and not rise.sudden and rise.share > 0.25:
        return f", while the loss rises for good since step {signals.step_at(rise.first):,}"
    return ", while the loss never fell" if signals.derived(never_learned, *NO_GAIN) else ""
