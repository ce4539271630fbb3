"""Adam's second moment lags behind the gradients: updates far larger than it means them to be.

What it detects
    The root mean square of g²/v of a weight matrix, which is near 1 while Adam's second moment v
    follows the gradients, jumps above 5 and to 3 times its own past, and the loss spikes 1 to 8
    steps later. One finding an episode.

Why it matters
    v averages over 1/(1 − beta2) steps. When a layer's gradients grow faster than that, its update
    is too large by this very factor, and the loss jumps some steps later.

Evidence
    The ratio at its jumps, and the loss around the spikes that follow.

Silent when
    No loss spike follows (v lags in healthy runs too, most of all early), in the warm-up and the
    first 100 steps, with fewer than 9 snapshots, or where the optimizer has no second moment. One
    or two spikes from which the loss comes back are an info.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import median, sigma, spread_out, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    MIN_PAST,
    Floats,
    earliest_start,
    matrix_mask,
    own_baselines,
    too_few_snapshots,
    usable,
)
from forensics.diagnose.warmup import warmup_end
from forensics.diagnose.wording import factor
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import IntArray

LEAD = 8
"""A loss spike follows an RMS event by 1 to 8 iterations (Wortsman et al. 2023)."""
PAST = 64
"""Rows whose median is the level before."""


@dataclass(frozen=True)
class Thresholds:
    """What counts as a jump, and when jumps are a fault."""

    ratio: float = threshold(5.0, "2.3 marks an event in Wortsman et al. 2023; heavy tails reach 3")
    grown: float = threshold(3.0, "times its own past; the level itself depends on the layer")
    settle: int = threshold(100, "early on, gradients of healthy networks grow faster than v")
    spikes: int = threshold(3, "loss spikes; one or two are what a hard batch does")
    height: float = threshold(0.05, "of the level before: what the loss-spike rule asks for")
    z: float = threshold(8.0, "robust z of the loss, as in the loss-spike rule")
    gap: int = threshold(1000, "steps; the window in which the spike rules count")
    recovery: int = threshold(100, "rows in which a loss comes back, as in the loss-spike rule")


def _settled(signals: Signals, matrix: ParamMatrix, thresholds: Thresholds) -> int:
    """The step from which on jumps count."""
    return max(warmup_end(signals), int(matrix.steps[0]) + thresholds.settle)


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    matrix = signals.param_matrix("v_ratio")
    if matrix is None:
        return ""
    taken = matrix.steps[matrix.present.any(axis=1)]
    few = too_few_snapshots(taken, MIN_PAST + 1)
    return few or too_few_snapshots(taken[taken >= _settled(signals, matrix, thresholds)], 1)


@rule(thresholds=Thresholds, parts=("params.v_ratio",), too_little=_too_little)
def stale_second_moment(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding that names the worst matrix and the loss spikes that followed."""
    matrix = signals.param_matrix("v_ratio")
    if matrix is None:
        return
    wanted = np.flatnonzero(matrix_mask(matrix.names, signals.parameter_info))
    values = usable(matrix)[:, wanted]
    grown = values / own_baselines(values)
    stale = (values >= thresholds.ratio) & (grown >= thresholds.grown)
    stale[matrix.steps < _settled(signals, matrix, thresholds)] = False
    at = np.flatnonzero(stale.any(axis=1))
    for episode in told_episodes(matrix.steps[at], thresholds.gap):
        inside = at[(matrix.steps[at] >= episode.first) & (matrix.steps[at] <= episode.last)]
        jumps = np.where(stale[inside], values[inside], 0)
        row, column = (int(i) for i in np.unravel_index(np.argmax(jumps), jumps.shape))
        story = _Story(matrix.names[wanted[column]], matrix.steps, values[:, column], inside)
        followed = _spike_rows(signals, matrix.steps[inside], thresholds)
        if followed:
            yield _finding(signals, story, (float(jumps[row, column]), followed), thresholds)


@dataclass(frozen=True)
class _Story:
    """The worst matrix of an episode: all snapshots' steps and ratios, and the rows that jump."""

    name: str
    steps: IntArray
    ratios: Floats
    at: IntArray


def _finding(
    signals: Signals, story: _Story, found: tuple[float, list[int]], thresholds: Thresholds
) -> Finding:
    at = story.steps[story.at]
    ratio, followed = found
    stayed = any(not _came_back(signals, row, thresholds) for row in followed)
    many = len(followed) >= thresholds.spikes
    return Finding(
        rule="stale-second-moment",
        severity=Severity.WARNING if many or stayed else Severity.INFO,
        message=_message(ratio, story.name, at, len(followed)),
        first_step=int(at[0]),
        last_step=int(at[-1]),
        earliest_step=earliest_start(story.steps, int(story.at[0])),
        subject=story.name,
        evidence=_evidence(signals, story, followed),
        cause="The layer's gradients grow faster than Adam's second moment can follow.",
        remedy="Lower beta2 (0.95 to 0.99), or limit the update by its RMS (update clipping as in "
        "AdaFactor or StableAdamW); a longer warm-up helps where it happens early.",
    )


def _spike_rows(signals: Signals, at: IntArray, thresholds: Thresholds) -> list[int]:
    """Rows of the loss spikes 1 to 8 steps after these snapshots, ascending."""
    if len(signals) == 0:
        return []
    first = np.searchsorted(signals.step, at + 1)
    last = np.searchsorted(signals.step, at + LEAD, side="right")
    rows = {_spike(signals, int(a), int(b), thresholds) for a, b in zip(first, last, strict=True)}
    return sorted(rows - {-1})


def _spike(signals: Signals, first: int, last: int, thresholds: Thresholds) -> int:
    past = signals.loss[max(0, first - PAST) : first]
    after = signals.loss[first:last]
    finite = np.flatnonzero(np.isfinite(after))
    if np.isfinite(past).sum() < 8 or len(finite) == 0:
        return -1
    peak = int(finite[np.argmax(after[finite])])
    rise = float(after[peak]) - median(past)
    needed = max(thresholds.z * sigma(past), thresholds.height * abs(median(past)))
    return first + peak if rise > needed else -1


def _came_back(signals: Signals, row: int, thresholds: Thresholds) -> bool:
    """Is the loss 100 to 200 rows later below half the spike's height (or not known)?"""
    later = signals.loss[row + thresholds.recovery : row + 2 * thresholds.recovery]
    before = median(signals.loss[max(0, row - PAST) : row])
    level = median(later)
    return not np.isfinite(level) or level <= before + 0.5 * (float(signals.loss[row]) - before)


def _message(ratio: float, name: str, at: IntArray, followed: int) -> str:
    seen = f"in {len(at)} snapshots" if len(at) > 1 else f"at step {int(at[0]):,}"
    spikes = "a loss spike follows" if followed == 1 else f"{followed} loss spikes follow"
    return f"gradients of {name} reach {factor(ratio)} what Adam expects {seen}; {spikes}"


def _evidence(signals: Signals, story: _Story, followed: list[int]) -> tuple[Evidence, ...]:
    picked = spread_out(np.unique(np.concatenate((np.maximum(story.at - 1, 0), story.at))))
    ratio = Evidence(
        signal=f"v_ratio of {story.name}",
        steps=tuple(int(step) for step in story.steps[picked]),
        values=tuple(float(value) for value in story.ratios[picked]),
        threshold=1.0,
    )
    around = [followed[0] + offset for offset in (-2, -1, 0, 1, 2)]
    return ratio, signals.evidence("loss", signals.loss, around)
