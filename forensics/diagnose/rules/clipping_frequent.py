"""A good part of the steps is clipped.

What it detects
    Windows of 300 norms of which more than 5 % are clipped, after twice the warm-up: the share of
    all steps from the first such window to the last, and the quantiles of the norm before the
    clip, as facts.

Why it matters
    It tells how the clip is used: as a safety net (rarely) or as part of the step size (often).
    Many sound recipes clip a tenth of their steps.

Evidence
    The norm before the clip where it begins, against the threshold.

Silent when
    Neither run.json nor norms after the clip tell what was clipped, or nearly every step is
    (clipping-every-step says that). Never more than an info.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.clipping import clip_of, clipped_rows, often, quantiles, too_few_norms
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When clipping is more than a safety net."""

    window: int = threshold(300, "the window of clipping-every-step, so that the two agree")
    share: float = threshold(0.05, "of a window: a net that catches more is part of the recipe")
    nearly_all: float = threshold(0.95, "of a window, from where on clipping-every-step tells it")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    return too_few_norms(signals, thresholds.window)


@rule(
    thresholds=Thresholds,
    needs=("grad_l2_pre_clip",),
    parts=("clip",),
    too_little=_too_little,
)
def clipping_frequent(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding, over all such windows."""
    inside = often(signals, thresholds.window, thresholds.share, thresholds.nearly_all)
    rows = clipped_rows(signals, inside)
    if rows.count == 0:
        return
    clip = clip_of(signals)
    limit = clip.threshold if clip.constant else None
    first, last = signals.step_at(rows.first), signals.step_at(rows.last)
    at = f" at {number(clip.threshold)}" if clip.constant else ""
    yield Finding(
        rule="clipping-frequent",
        severity=Severity.INFO,
        message=(
            f"{percent(rows.share)} of {rows.count:,} steps between {first:,} and {last:,} are "
            f"clipped{at}{quantiles(signals, inside)}"
        ),
        first_step=first,
        last_step=last,
        evidence=(signals.evidence("grad_l2_pre_clip", signals.norm, list(rows.head), limit),),
        cause="Gradients whose noise reaches the threshold now and then, as in most recipes.",
        remedy="Nothing to do while the loss falls; the quantiles are facts, not a threshold.",
    )
