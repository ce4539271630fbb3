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

import numpy as np

from forensics.diagnose.clipping import (
    clip_of,
    clipped_rows,
    cut,
    every_step,
    quantiles,
    starves,
    too_few_norms,
)
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.loss_course import NO_GAIN, never_learned
from forensics.diagnose.loss_rise import RISE, find_rise
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """When clipping is the rule."""

    window: int = threshold(300, "norms; healthy runs of 20,000 steps have such a window too")
    share: float = threshold(0.95, "of a window")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    return too_few_norms(signals, thresholds.window)


@rule(
    thresholds=Thresholds,
    needs=("grad_l2_pre_clip",),
    parts=("clip",),
    too_little=_too_little,
)
def clipping_every_step(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding, over all such windows."""
    inside = every_step(signals, thresholds.window, thresholds.share)
    rows = clipped_rows(signals, inside)
    if rows.count == 0:
        return
    clip = clip_of(signals)
    first, last = signals.step_at(rows.first), signals.step_at(rows.last)
    beside = _trouble(signals, inside)
    limit = clip.threshold if clip.constant else None
    starved = bool(beside) and starves(signals)
    yield Finding(
        rule="clipping-every-step",
        severity=Severity.WARNING if beside else Severity.INFO,
        message=(
            f"{percent(rows.share)} of {rows.count:,} steps between {first:,} and {last:,} are "
            f"clipped{_at(signals)}{quantiles(signals, inside)}{beside}"
        ),
        first_step=first,
        last_step=last,
        evidence=(signals.evidence("grad_l2_pre_clip", signals.norm, list(rows.head), limit),),
        cause=_starved_cause(signals) if starved else _CAUSE,
        remedy=_starved_remedy(signals) if starved else _REMEDY,
    )


_CAUSE = (
    "Normal in fine-tuning and reinforcement learning. Elsewhere a loss that is summed instead of "
    "averaged, or accumulation that does not divide it."
)
_REMEDY = (
    "First check that the loss is a mean and is divided by the accumulation count. The quantiles "
    "are facts about this run, not a threshold to take."
)
_STARVED_REMEDY = (
    "Raise the threshold to where the norms are, so that it cuts the exceptions only. Before that "
    "check that the loss is a mean and divided by the accumulation count: a sum makes norms large."
)


def _starved_remedy(signals: Signals) -> str:
    order = "Check that the clip comes after scaler.unscale_: scaled gradients have such norms. "
    return (order if signals.scaling.active else "") + _STARVED_REMEDY


def _starved_cause(signals: Signals) -> str:
    rate = signals.lr[np.isfinite(signals.lr)]
    top = float(rate.max()) if len(rate) else float("nan")
    times = cut(signals)
    still = f": a rate of {number(top)} works like {number(top / times)}" if top > 0 else ""
    less = f"{number(times)} times shorter{still}"
    return f"Without a second moment to divide by, the clip makes every step {less}."


def _at(signals: Signals) -> str:
    clip = clip_of(signals)
    if not clip.constant:
        return " (to no constant norm)"
    return f" at {number(clip.threshold)}" + ("" if clip.stated else " (read from the norms)")


def _trouble(signals: Signals, inside: BoolArray) -> str:
    """What goes wrong where every step is clipped, as a clause; empty where nothing does.

    A rise counts where every step was clipped before it too: afterwards it is the rise's doing.
    """
    rise = signals.derived(find_rise, *RISE)
    if rise is not None and not rise.falling and not rise.sudden and rise.share > 0.25:
        before = int(np.count_nonzero(inside[max(rise.first - 300, 0) : rise.first]))
        if before >= 270 and int(np.count_nonzero(inside[rise.first :])) >= 300:
            return f", while the loss rises for good since step {signals.step_at(rise.first):,}"
    return ", while the loss never fell" if signals.derived(never_learned, *NO_GAIN) else ""
