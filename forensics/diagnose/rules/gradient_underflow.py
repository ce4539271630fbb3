"""Gradients fall below what fp16 can hold.

What it detects
    The root mean square of the scaled gradient elements, norm · scale / √P, below 2^-20 (an error
    below 2^-24, the smallest number of fp16) in 18 of 20 steps. One finding an episode.

Why it matters
    Elements below 2^-24 become exactly 0, those just above lose most of their digits. The loss
    stops falling although nothing looks wrong.

Evidence
    The size of the scaled elements and the norm, at the start and the end.

Silent when
    The run is not fp16, the number of parameters is not known (run.json has it), or the norm is
    exactly 0 under a loss scaler: then no gradient arrives at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.fp16_range import elements_log2
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, median, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, span
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """How small, and for how long."""

    warning_log2: float = threshold(-20.0, "4 bits above fp16's smallest number: elements spread")
    error_log2: float = threshold(-24.0, "the smallest subnormal of fp16 is 2^-24")
    window: int = threshold(20, "rows; single small batches are left out")
    most: int = threshold(18, "of the window: one or two odd steps do not hide it")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",), parts=("manifest",))
def gradient_underflow(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of underflow."""
    size = elements_log2(signals)
    # Under a loss scaler a gradient of exactly 0 was 0 before it was scaled: no underflow.
    no_gradient = np.isneginf(size) & (signals.scaling.active is True)
    low = _low_rows(size, no_gradient, thresholds)
    for episode in told_episodes(low, 5 * thresholds.window):
        inside = size[episode.first : episode.last + 1]
        level = float(np.median(inside[~np.isnan(inside)]))
        severe = level < thresholds.error_log2
        yield _finding(signals, episode, size, level, severe, thresholds)


def _low_rows(size: FloatArray, no_gradient: BoolArray, thresholds: Thresholds) -> IntArray:
    """Rows that are low in a window that is low, ascending."""
    if np.count_nonzero(size < thresholds.warning_log2) < thresholds.most:
        return np.empty(0, dtype=np.int64)
    known = np.flatnonzero(~np.isnan(size) & ~no_gradient)
    low = size[known] < thresholds.warning_log2
    total = np.concatenate(([0], np.cumsum(low)))
    ends = np.arange(1, len(known) + 1)
    begins = np.maximum(ends - thresholds.window, 0)
    alarms = np.flatnonzero(total[ends] - total[begins] >= thresholds.most)
    covered = np.zeros(len(known) + 1, dtype=np.int64)
    np.add.at(covered, begins[alarms], 1)
    np.add.at(covered, alarms + 1, -1)
    return np.asarray(known[(np.cumsum(covered[:-1]) > 0) & low], dtype=np.int64)


def _finding(
    signals: Signals,
    episode: Episode,
    size: FloatArray,
    level: float,
    severe: bool,
    thresholds: Thresholds,
) -> Finding:
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    rows = [episode.first - 1, episode.first, episode.last]
    typical = "exactly 0" if np.isneginf(level) else f"about {power_of_two(2.0 ** round(level))}"
    norm = median(signals.norm[episode.first : episode.last + 1])
    return Finding(
        rule="gradient-underflow",
        severity=Severity.ERROR if severe else Severity.WARNING,
        message=f"scaled gradient elements are {typical} in {span(first, last)}, fp16 ends at "
        f"2^-24 (norm {number(norm)})",
        first_step=first,
        last_step=last,
        evidence=(
            signals.evidence(
                "log2(norm × scale / √P)", size, rows, threshold=thresholds.error_log2
            ),
            signals.evidence("grad_l2_pre_clip", signals.norm, rows),
        ),
        cause=_cause(signals, level),
        remedy=_remedy(signals),
    )


def _cause(signals: Signals, level: float) -> str:
    if np.isneginf(level):
        return "Every gradient is 0: underflow in fp16, or a graph that does not reach the weights."
    if signals.scaling.active:
        return "The gradients shrank faster than the loss scale grew."
    return "fp16 without a loss scaler: small gradients have no bits to live in."


def _remedy(signals: Signals) -> str:
    if signals.scaling.active:
        return (
            "Run in bf16 where the device has it, raise the initial scale, or shorten the growth "
            "interval; if the norm is tiny in fp32 as well, look for vanishing gradients."
        )
    return "Use a GradScaler with fp16, or bf16 where the device has it, which needs none."
