"""The loss scale grows without end: nothing overflows that should.

What it detects
    A scale of 2^24 or more, grown beyond its start, while the gradient norm is exactly 0 or far
    below what fp16 holds. And a scale that has grown so far that the scaled gradient cannot be
    finite in fp16, while the norm is ordinary. One finding an episode.

Why it matters
    Overflows are what stops a scale. Without gradients there are none: the run is not learning, and
    the first real gradient will overflow for many steps. With ordinary gradients the overflows are
    not seen, or nothing is computed in fp16 and the scale ends beyond float32.

Evidence
    The loss scale and the gradient norm.

Silent when
    Gradients are of ordinary size and the scale leaves them room (some scalers start at 2^32), or
    the log prints so few digits that a small norm looks like 0. In bf16 and fp32 the rule
    precision-mismatch tells of any scaler.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.fp16_range import elements_log2, prints_few_digits
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, median, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, span, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How large is too large, and how small too small."""

    scale_log2: float = threshold(24.0, "2^24 is a common cap of growing scales")
    underflow_log2: float = threshold(-20.0, "as in gradient-underflow")
    least: int = threshold(10, "rows; a step without gradients may be a batch without labels")
    beyond_log2: float = threshold(
        36.0, "norm · scale: 65,504 times the root of 10^12 elements, more than models have"
    )
    apart_log2: float = threshold(
        24.0, "scale / norm: where the loop logs scaled gradients, the two grow together"
    )


@rule(thresholds=Thresholds, needs=("scaler_scale", "grad_l2_pre_clip"))
def loss_scale_runaway(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of growth without gradients."""
    rows = np.flatnonzero(_runaway(signals, thresholds))
    enough = rows[signals.scaling.in_window(rows) >= thresholds.least] if len(rows) else rows
    if len(enough) == 0:
        return
    beyond = _beyond(signals, thresholds)
    for episode in told_episodes(rows, 1000):
        if ((enough >= episode.first) & (enough <= episode.last)).any():
            ordinary = bool(beyond[episode.first : episode.last + 1].any())
            yield _unseen(signals, episode) if ordinary else _finding(signals, episode)


def _runaway(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """Rows with a huge, grown scale that nothing stops, shape (rows,)."""
    scaling = signals.scaling
    nowhere = np.zeros(len(signals), dtype=bool)
    if not scaling.active or len(scaling.growths) == 0:
        return nowhere
    least = max(float(scaling.scales.log2[0]), thresholds.scale_log2 - 1)
    if scaling.scales.log2.max() <= least:
        return nowhere
    grown = signals.scale_log2(slice(None)) > least
    without = _without_gradient(signals, thresholds)
    return np.asarray(grown & (without | _beyond(signals, thresholds)), dtype=bool)


def _beyond(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """Rows whose scaled gradient is finite though fp16 cannot hold it, shape (rows,)."""
    if signals.precision != "fp16":
        return np.zeros(len(signals), dtype=bool)
    norm_log2 = np.log2(np.where(signals.norm > 0, signals.norm, np.nan))
    scale_log2 = signals.scale_log2(slice(None))
    scaled = norm_log2 + scale_log2
    unscaled = scale_log2 - norm_log2 > thresholds.apart_log2
    finite = np.isfinite(signals.norm)
    return np.asarray(finite & unscaled & (scaled > thresholds.beyond_log2), dtype=bool)


def _without_gradient(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """Rows with a norm of exactly 0 or one far below fp16, shape (rows,)."""
    zero = signals.present("grad_l2_pre_clip") & (signals.norm == 0.0)
    if zero.any() and prints_few_digits(signals.norm):
        zero = np.zeros_like(zero)
    tiny = elements_log2(signals) < thresholds.underflow_log2
    return np.asarray(zero | tiny, dtype=bool)


def _finding(signals: Signals, episode: Episode) -> Finding:
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    top = float(np.nanmax(signals.scale[episode.first : episode.last + 1]))
    start = 2.0 ** float(signals.scaling.scales.log2[0])
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


def _unseen(signals: Signals, episode: Episode) -> Finding:
    """Gradients of ordinary size under a scale at which every one of them must overflow."""
    first = signals.step_at(episode.first)
    start = 2.0 ** float(signals.scaling.scales.log2[0])
    stretch = slice(episode.first, episode.last + 1)
    falls = signals.scaling.falls.rows
    stopped = bool(((falls >= episode.first) & (falls <= episode.last)).any())
    unstopped = "" if stopped else "without an overflow "
    top = float(np.nanmax(signals.scale[stretch]))
    finite_end = float(np.finfo(np.float32).max)
    past_float = " and is beyond float32" if top > finite_end else ""
    return Finding(
        rule="loss-scale-runaway",
        severity=Severity.WARNING,
        message=f"loss scale grew from {power_of_two(start)} to {power_of_two(top)}{past_float} "
        f"{unstopped}although the gradient norm is {number(median(signals.norm[stretch]))}: from "
        f"step {first:,} on no fp16 gradient of that size can be finite",
        first_step=first,
        last_step=signals.step_at(episode.last),
        evidence=(
            signals.evidence("scaler_scale", signals.scale, [episode.first, episode.last]),
            signals.evidence("grad_l2_pre_clip", signals.norm, [episode.first, episode.last]),
        ),
        cause="Either nothing is computed in fp16 (bf16 or fp32 with a scaler left on), or the "
        "scaler does not see the overflows: unscale_ is not called, another scaler or other "
        "gradients are checked, or the loss is not multiplied by this scale.",
        remedy="Print the dtype inside autocast: for bf16 and fp32 use GradScaler(enabled=False). "
        "In fp16 call scale(loss).backward(), unscale_, step and update of one scaler.",
    )
