"""A weight matrix grows and does not slow down.

What it detects
    The norm of a weight matrix has grown to 3 times (info) or 10 times (warning) what it was
    after the warm-up, and grew as much in the second half of that time as in the first. Random
    drift grows like the square root of time and slows down; this does not.

Why it matters
    What the matrix multiplies grows with it: attention scores, logits, activations. In fp16 they
    overflow at 65,504, and a softmax saturates long before.

Evidence
    The norm of the fastest matrix over the snapshots.

Silent when
    The growth slows down (as under a decaying rate, weight decay or random drift); it is a bias, a
    normalisation weight, or a matrix initialised near zero; there are fewer than 12 snapshots or
    they span fewer than 100 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import median, spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    Floats,
    column_medians,
    earliest_start,
    matrix_mask,
    too_few_snapshots,
    trainable_mask,
    usable,
)
from forensics.diagnose.warmup import warmup_end
from forensics.diagnose.wording import factor, number, percent
from forensics.frozen import dataclass
from forensics.runlog.manifest import ParameterInfo
from forensics.runlog.steps import BoolArray, IntArray

ENDS = 4
"""Snapshots whose median stands for the beginning, the middle and the end."""


@dataclass(frozen=True)
class Thresholds:
    """When a weight is said to grow away."""

    told: float = threshold(3.0, "healthy matrices of a small GPT double at most after warm-up")
    growth: float = threshold(
        10.0, "products of two such matrices are up by 100: 7 octaves of fp16"
    )
    steady: float = threshold(
        0.9, "second half over first: 1 is a straight line, 0.5 a random walk"
    )
    snapshots: int = threshold(12, "three medians of four")
    steps: int = threshold(100, "early fits of small models grow straight for some tens of steps")
    start_rms: float = threshold(1e-3, "matrices that start near zero have to grow")


@dataclass(frozen=True)
class _View:
    """Snapshots after the warm-up × weight matrices; ``growth`` and ``grows`` have shape (M,)."""

    steps: IntArray
    names: tuple[str, ...]
    norms: Floats
    growth: Floats
    grows: BoolArray


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    matrix = signals.param_matrix("value_l2")
    if matrix is None:
        return ""
    settled = matrix.steps[matrix.steps >= warmup_end(signals)]
    return too_few_snapshots(settled, thresholds.snapshots, thresholds.steps)


@rule(thresholds=Thresholds, parts=("params.value_l2",), too_little=_too_little)
def weight_growth(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding, about the matrix that has grown the most."""
    view = _view(signals, thresholds)
    if view is None or not view.grows.any():
        return
    column = int(np.argmax(np.where(view.grows, view.growth, 0)))
    grown = float(view.growth[column])
    first = _onset(view.norms[:, column])
    last = int(np.flatnonzero(np.isfinite(view.norms[:, column]))[-1])
    picked = spread_out(np.arange(max(0, first - 1), last + 1))
    everywhere = view.grows.sum() * 5 >= len(view.names) * 4
    yield Finding(
        rule="weight-growth",
        severity=Severity.WARNING if grown >= thresholds.growth else Severity.INFO,
        message=_message(view, column, (first, last)),
        first_step=int(view.steps[first]),
        last_step=int(view.steps[last]),
        earliest_step=earliest_start(view.steps, first, in_update=True),
        subject=view.names[column],
        evidence=(
            Evidence(
                signal=f"value_l2 of {view.names[column]}",
                steps=tuple(int(step) for step in view.steps[picked]),
                values=tuple(float(value) for value in view.norms[picked, column]),
            ),
        ),
        cause="Every matrix grows: the learning rate is too high, or nothing (weight decay, "
        "normalisation) holds the weights."
        if everywhere
        else "This layer's updates point the same way step after step and nothing holds it back.",
        remedy=f"Resume from before step {int(view.steps[first]):,} with a lower rate or with "
        "weight decay on it; if it feeds a softmax or a product, normalise its output.",
    )


def _view(signals: Signals, thresholds: Thresholds) -> _View | None:
    matrix = signals.param_matrix("value_l2")
    if matrix is None:
        return None
    info = signals.parameter_info
    wanted = matrix_mask(matrix.names, info) & trainable_mask(matrix.names, info)
    everything = usable(matrix)
    columns = np.flatnonzero(
        wanted & ~_starts_near_zero(matrix.names, everything, info, thresholds)
    )
    rows = np.flatnonzero(matrix.steps >= warmup_end(signals))
    steps, norms = matrix.steps[rows], everything[np.ix_(rows, columns)]
    if len(columns) == 0 or len(rows) < thresholds.snapshots:
        return None
    growth = np.zeros(len(columns), dtype=np.float32)
    start = column_medians(norms[:ENDS])
    for column in np.flatnonzero(np.nanmax(norms, axis=0, initial=0) >= thresholds.told * start):
        growth[column] = _steady_growth(steps, norms[:, column], thresholds)
    names = tuple(matrix.names[column] for column in columns)
    return _View(steps, names, norms, growth, growth >= thresholds.told)


def _steady_growth(steps: IntArray, norms: Floats, thresholds: Thresholds) -> float:
    """How many times the norm has grown; 0 where it slowed down or too little is known."""
    finite = np.flatnonzero(np.isfinite(norms))
    if len(finite) < thresholds.snapshots:
        return 0.0
    at = steps[finite]
    if at[-1] - at[0] < thresholds.steps:
        return 0.0
    half = int(np.searchsorted(at, (at[0] + at[-1]) / 2)) - ENDS // 2
    half = min(max(half, 0), len(finite) - ENDS)
    start, middle, end = (
        median(norms[finite[first : first + ENDS]]) for first in (0, half, len(finite) - ENDS)
    )
    steady = end - middle >= thresholds.steady * (middle - start)
    return end / start if steady and start > 0 else 0.0


def _starts_near_zero(
    names: tuple[str, ...], norms: Floats, info: Mapping[str, ParameterInfo], thresholds: Thresholds
) -> BoolArray:
    """Matrices whose elements are next to zero in the first snapshot of the run; shape (P,)."""
    sizes = np.array([info[n].numel if n in info else 1 for n in names], dtype=np.float64)
    first = norms[0] if len(norms) else np.zeros(len(names), dtype=np.float32)
    return np.asarray(first < thresholds.start_rms * np.sqrt(np.maximum(sizes, 1)), dtype=bool)


def _onset(norms: Floats) -> int:
    """The snapshot after the last one within 10 % of the starting level."""
    finite = np.flatnonzero(np.isfinite(norms))
    start = median(norms[finite[:ENDS]])
    calm = finite[norms[finite] <= 1.1 * start]
    return min(int(calm[-1]) + 1, int(finite[-1])) if len(calm) else int(finite[0])


def _message(view: _View, column: int, rows: tuple[int, int]) -> str:
    others = int(view.grows.sum()) - 1
    first, last = (int(view.steps[row]) for row in rows)
    rate = float(view.growth[column]) ** (1 / max(1, last - first)) - 1
    more = f"; {others} more matrices too" if others else ""
    return (
        f"{view.names[column]} grew {factor(float(view.growth[column]))} between steps {first:,} "
        f"and {last:,} without slowing down (norm {number(float(view.norms[rows[1], column]))}, "
        f"{percent(rate)} a step){more}"
    )
