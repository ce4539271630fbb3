"""One parameter's gradient left its own baseline and carries the norm.

What it detects
    A parameter whose gradient norm grows to 10 times its own past and 5 times as far as the
    median parameter, while it holds at least an equal share of the squared global norm. The
    finding names who left first, who went furthest, and the top five at that moment. One finding
    an episode.

Why it matters
    The global norm says that something grows; this says where. It points at the layer to look at
    and is never the reason by itself: a bad batch, a learning rate or a growing activation is
    behind it.

Evidence
    The parameter's own gradient norm over the snapshots, its growth beside the median
    parameter's, and the squared share of the top five.

Silent when
    All parameters grow together, the parameter is small beside the others, it goes back within
    the first 100 steps or the warm-up, or there are fewer than nine snapshots with gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import MOST_EPISODES, episodes, spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    MIN_PAST,
    Floats,
    earliest_start,
    own_baselines,
    row_medians,
    squared_shares,
    too_few_snapshots,
    usable,
)
from forensics.diagnose.warmup import warmup_end
from forensics.diagnose.wording import factor, percent
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """When one parameter is said to lead."""

    growth: float = threshold(10.0, "a healthy GPT stays within 2.6 of each own baseline")
    relative: float = threshold(5.0, "beside the median parameter a healthy GPT stays within 1.9")
    lasting: int = threshold(3, "snapshots in a row; a single one is a hard batch")
    share: float = threshold(0.5, "of the squared norm: then the clip acts on this one alone")
    settle: int = threshold(100, "in its first steps a healthy network shifts between layers")
    gap: int = threshold(4, "snapshots of quiet that end an episode")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    del thresholds
    matrix = signals.param_matrix("grad_l2")
    if matrix is None:
        return ""
    return too_few_snapshots(matrix.steps[matrix.present.any(axis=1)], MIN_PAST + 1)


@rule(thresholds=Thresholds, parts=("params.grad_l2",), too_little=_too_little)
def dominant_parameter(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode in which some parameter leads."""
    matrix = signals.param_matrix("grad_l2")
    if matrix is None:
        return
    story = _tell(matrix, thresholds)
    settled = max(warmup_end(signals), int(matrix.steps[0]) + thresholds.settle)
    told = 0
    for first, last in episodes(np.flatnonzero(story.leads.any(axis=1)), thresholds.gap):
        early = matrix.steps[first] < settled
        if told < MOST_EPISODES and not (early and _came_back(story, (first, last), thresholds)):
            told += 1
            yield _finding(matrix, story, (first, last), thresholds)


@dataclass(frozen=True)
class _Story:
    """What the rule computed of every snapshot; shape (S, P), ``usual`` (S,)."""

    values: Floats
    growth: Floats
    usual: Floats
    shares: Floats
    leads: BoolArray


def _tell(matrix: ParamMatrix, thresholds: Thresholds) -> _Story:
    values = usable(matrix)
    growth = np.asarray(values / own_baselines(values), dtype=np.float32)
    usual = row_medians(growth)
    shares = squared_shares(values)
    leads = (growth >= thresholds.growth) & (shares >= 1.0 / max(1, len(matrix.names)))
    leads &= growth >= thresholds.relative * np.maximum(usual, 1.0)[:, None]
    return _Story(values, growth, usual, shares, leads)


def _finding(
    matrix: ParamMatrix, story: _Story, rows: tuple[int, int], thresholds: Thresholds
) -> Finding:
    first, last = rows
    led = np.where(story.leads[first : last + 1], story.growth[first : last + 1], 0)
    peak, furthest = (int(i) for i in np.unravel_index(np.argmax(led), led.shape))
    starts = {
        int(column): _since(story, int(column), first + int(np.argmax(led[:, column] > 0)))
        for column in np.flatnonzero(led.any(axis=0))
    }
    leader = min(starts, key=lambda column: (starts[column], -led[:, column].max()))
    since = starts[leader]
    name, step = matrix.names[leader], int(matrix.steps[since])
    return Finding(
        rule="dominant-parameter",
        severity=_severity(story, rows, (first + peak, furthest), thresholds),
        message=_message(matrix, story, leader, (first + peak, furthest)),
        first_step=step,
        last_step=int(matrix.steps[last]),
        earliest_step=earliest_start(matrix.steps, since),
        subject=name,
        evidence=_evidence(matrix, story, leader, (since, last), first + peak),
        cause="What grows sits in this layer or between it and the loss: an activation, a rate "
        "too high for this layer, or a batch that only this layer reacts to.",
        remedy=f"Look at {name} and its module from step {step:,} on; "
        "to resume, take a checkpoint from before that step.",
    )


def _since(story: _Story, column: int, row: int) -> int:
    """The snapshot at which this growth began: from there on above twice the baseline."""
    calm = np.flatnonzero(story.growth[:row, column] <= 2.0)
    return int(calm[-1]) + 1 if len(calm) else row


def _came_back(story: _Story, rows: tuple[int, int], thresholds: Thresholds) -> bool:
    """Is there a later snapshot in which nobody who led leads any more?"""
    led = story.leads[rows[0] : rows[1] + 1].any(axis=0)
    later = story.growth[rows[1] + 1 :, led]
    return bool(((later < thresholds.growth) | (later == 0)).all(axis=1).any())


def _severity(
    story: _Story, rows: tuple[int, int], peak: tuple[int, int], thresholds: Thresholds
) -> Severity:
    """A warning when one parameter has come to be most of the norm and never went back."""
    row, column = peak
    lasted = int(story.leads[rows[0] : rows[1] + 1, column].sum()) >= thresholds.lasting
    carries = story.shares[row, column] >= thresholds.share
    serious = lasted and carries and not _came_back(story, rows, thresholds)
    return Severity.WARNING if serious else Severity.INFO


def _message(matrix: ParamMatrix, story: _Story, leader: int, peak: tuple[int, int]) -> str:
    row, column = peak
    grown, usual = float(story.growth[row, column]), float(story.usual[row])
    who = "" if column == leader else f", then {matrix.names[column]}"
    return (
        f"{matrix.names[leader]} left its baseline first{who}: gradient norm {factor(grown)} by "
        f"step {int(matrix.steps[row]):,} (median parameter {factor(usual)}), "
        f"{percent(float(story.shares[row, column]))} of the squared norm"
    )


def _evidence(
    matrix: ParamMatrix, story: _Story, leader: int, rows: tuple[int, int], peak: int
) -> tuple[Evidence, ...]:
    """The leader's norm from just before, and the top five by norm at the peak."""
    picked = spread_out(np.arange(max(0, rows[0] - 2), rows[1] + 1))
    norms = Evidence(
        signal=f"grad_l2 of {matrix.names[leader]}",
        steps=tuple(int(step) for step in matrix.steps[picked]),
        values=tuple(float(value) for value in story.values[picked, leader]),
    )
    shares = story.shares[peak]
    top = np.argsort(-np.nan_to_num(shares), kind="stable")[:5]
    return norms, *(
        Evidence(
            signal=f"share of the squared norm, {matrix.names[column]}",
            steps=(int(matrix.steps[peak]),),
            values=(float(shares[column]),),
        )
        for column in top
    )
