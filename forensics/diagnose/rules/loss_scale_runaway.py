"""The loss scale grows without end because no gradient arrives.

What it detects
    A scale of 2^24 or more, grown beyond its start, while the gradient norm is exactly 0 or far
    below what fp16 holds. One finding an episode.

Why it matters
    Overflows are what stops a scale. Without gradients there are none: the run is not learning, and
    the first real gradient will overflow for many steps.

Evidence
    The loss scale and the gradient norm.

Silent when
    Gradients are of ordinary size (some scalers start at 2^32), or the log prints so few digits
    that a small norm looks like 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.fp16_range import elements_log2, prints_few_digits
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, span, steps
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How large is too large, and how small too small."""

    scale_log2: float = threshold(24.0, "2^24 is a common cap of growing scales")
    underflow_log2: float = threshold(-20.0, "as in gradient-underflow")
    least: int = threshold(10, "rows; a step without gradients may be a batch without labels")


@rule(thresholds=Thresholds, needs=("scaler_scale", "grad_l2_pre_clip"))
def loss_scale_runaway(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of growth without gradients."""
    rows = np.flatnonzero(_runaway(signals, thresholds))
    enough = rows[signals.scaling.in_window(rows) >= thresholds.least] if len(rows) else rows
    if len(enough) == 0:
        return
    for episode in told_episodes(rows, 1000):
        if ((enough >= episode.first) & (enough <= episode.last)).any():
            yield _finding(signals, episode)


def _runaway(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """Rows with a huge, grown scale and no gradient, shape (rows,)."""
    scaling = signals.scaling
    grown = np.zeros(len(signals), dtype=bool)
    if not scaling.active or len(scaling.growths) == 0:
        return grown
    start = float(scaling.log2[0])
    grown[:] = signals.scale_log2 > max(start, thresholds.scale_log2 - 1)
    zero = signals.present("grad_l2_pre_clip") & (signals.norm == 0.0)
    if zero.any() and prints_few_digits(signals.norm):
        zero = np.zeros_like(zero)
    tiny = elements_log2(signals) < thresholds.underflow_log2
    return np.asarray(grown & (zero | tiny), dtype=bool)


def _finding(signals: Signals, episode: Episode) -> Finding:
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    top = float(np.nanmax(signals.scale[episode.first : episode.last + 1]))
    start = 2.0 ** float(signals.scaling.log2[0])
    norm = number(float(signals.norm[episode.first]))
    return Finding(
        rule="loss-scale-runaway",
        severity=Severity.WARNING,
        message=f"loss scale grew from {power_of_two(start)} to {power_of_two(top)} while the "
        f"gradient norm is {norm} ({steps(episode.rows)} in {span(first, last)})",
        first_step=first,
        last_step=last,
        evidence=(
            signals.evidence("scaler_scale", signals.scale, [episode.first, episode.last]),
            signals.evidence("grad_l2_pre_clip", signals.norm, [episode.first, episode.last]),
        ),
        cause="No gradient reaches the parameters: a detached graph, a learning signal that is "
        "constant, frozen parameters only, or gradients below what fp16 holds.",
        remedy="Check that loss.backward() reaches the parameters (grad is not None, not 0) and "
        "that the loss depends on them; then start again from the initial scale.",
    )
