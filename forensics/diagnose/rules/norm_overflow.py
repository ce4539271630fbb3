"""The gradient norm overflowed though no gradient did.

What it detects
    A norm of Inf while every gradient element is finite: the squares overflow (fp32 elements above
    1.8e19, fp16 norms above 65,504). The record says so itself, or a snapshot counts no non-finite
    element, or the norm measured after the clip is exactly 0, which an Inf element would have
    turned into NaN. One finding an episode; episodes closer than 100 rows are one.

Why it matters
    A clip by an infinite norm multiplies every gradient by 0: the step is lost in silence, and a
    guard that tests the norm skips a step that was sound.

Evidence
    The norm before the clip, and after it where it was measured.

Silent when
    Some element is non-finite, or nothing tells whether one is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.lost_norms import left_nothing, lost_norms
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, span
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When two stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",))
def norm_overflow(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of overflowed norms."""
    # A recorder may take the true norm where the loop's own clip still meets the infinite one.
    lost = signals.derived(lost_norms) | (signals.norm_overflowed & left_nothing(signals))
    overflowed = signals.norm_overflowed | lost
    for episode in told_episodes(np.flatnonzero(overflowed), thresholds.gap):
        rows = slice(episode.first, episode.last + 1)
        is_lost = bool(lost[rows].any())
        yield Finding(
            rule="norm-overflow",
            severity=Severity.ERROR if is_lost else Severity.WARNING,
            message=_message(signals, episode, is_lost),
            first_step=signals.step_at(episode.first),
            last_step=signals.step_at(episode.last),
            evidence=(
                signals.evidence("grad_l2_pre_clip", signals.norm, [episode.first, episode.last]),
                signals.evidence(
                    "grad_l2_post_clip", signals.post_norm, [episode.first, episode.last]
                ),
            ),
            cause="Finite but enormous gradients: an outlier in the batch or a target of the wrong "
            "scale, a loss that is summed, or a norm that is computed in fp16.",
            remedy=_remedy(is_lost),
        )


def _message(signals: Signals, episode: Episode, is_lost: bool) -> str:
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    whole = episode.rows == episode.last - episode.first + 1
    count = "" if whole else f"{episode.rows:,} of "
    value = float(signals.norm[episode.first])
    size = f" (true norm {number(value)})" if np.isfinite(value) else ""
    fate = "; the clip then turned every gradient into 0" if is_lost else ""
    return (
        f"the gradient norm overflowed at {count}{span(first, last)} though every element is "
        f"finite{size}{fate}"
    )


def _remedy(is_lost: bool) -> str:
    look = "Look at the batch and the scale of the targets of that step."
    if is_lost:
        return f"{look} Compute the global norm in float64 from per-tensor norms, and clip by that."
    return f"{look} The step was clipped by its true norm and taken."
