"""The clip spread one bad gradient over all parameters.

What it detects
    Steps that were taken with a non-finite norm before the clip and a norm after it that is NaN or
    0: after one Inf the clip's coefficient is 0 and every other gradient became 0; after one NaN
    every gradient is NaN.

Why it matters
    From the clip on every parameter looks guilty: attribution must be taken before it. With NaN
    the optimizer writes it into all weights; with 0 the step is silently lost.

Evidence
    The norms before and after the clip.

Silent when
    The step was skipped, as a loss scaler does: then nothing came of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, span, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """When two bad stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip", "grad_l2_post_clip"))
def clip_contamination(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode."""
    spread = signals.present("grad_l2_post_clip") & (
        ~np.isfinite(signals.post_norm) | (signals.post_norm == 0)
    )
    bad = signals.norm_bad & spread & ~_not_taken(signals) & ~signals.norm_overflowed
    for episode in told_episodes(np.flatnonzero(bad), thresholds.gap):
        yield _finding(signals, episode)


def _not_taken(signals: Signals) -> BoolArray:
    """Skipped, or, where the log does not say, explained by a loss scaler."""
    if signals.has("skipped"):
        return signals.skipped
    routine: BoolArray = signals.scaling.routine.copy()
    routine[signals.scaling.falls.rows] = True
    return routine


def _finding(signals: Signals, episode: Episode) -> Finding:
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    before = number(float(signals.norm[episode.first]))
    zero = float(signals.post_norm[episode.first]) == 0
    what = "0 after: every other gradient is 0" if zero else "NaN after: every gradient is NaN"
    where = span(first, last)
    many = f" in {steps(episode.rows)} of" if episode.rows > 1 else " at"
    told = signals.has("skipped")
    around = [episode.first - 1, episode.first, episode.first + 1, episode.last]
    return Finding(
        rule="clip-contamination",
        severity=Severity.ERROR if told and not zero else Severity.WARNING,
        message=(
            f"the clip spread a bad gradient{many} {where}: the norm is {before} before it and "
            f"{what}" + (", and the step was taken" if told else "")
        ),
        first_step=first,
        last_step=last,
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, around),
            signals.evidence("grad_l2_post_clip", signals.post_norm, around),
        ),
        cause=(
            "clip_grad_norm_ multiplies by threshold ÷ norm: a norm of Inf makes that 0, a norm of "
            "NaN makes it NaN."
        ),
        remedy=(
            "Skip the step when the norm is non-finite (or call the clip with "
            "error_if_nonfinite=True), and look for the bad parameter before the clip."
        ),
    )
