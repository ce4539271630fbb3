"""Updates far too large, or far too small, for the weights they go to.

What it detects
    The size of a weight matrix's update beside the matrix itself, for long and after the
    warm-up: above 1e-1 (a tenth of the matrix is replaced each step), below 1e-8 from the start
    (nothing an fp32 weight can hold), or, for weights stored in 16 bits without an fp32 master
    copy, below a quarter of the spacing of their numbers (2^-10 in bf16), where most elements
    stay put.

Why it matters
    The ratio is what the learning rate really means to a layer: healthy training lies near 1e-3.
    Too large, and the layer forgets with each step; too small, and it does not learn.

Evidence
    The ratio over the snapshots of the matrix that is furthest out.

Silent when
    It is a bias, a normalisation weight or frozen; in the first 100 steps and the warm-up, when
    half the matrices of a healthy run exceed 0.1; for small ratios, once the rate has decayed
    below a tenth of its peak; with fewer than 8 snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    Floats,
    column_medians,
    longest_runs,
    matrix_mask,
    same_axes,
    too_few_snapshots,
    trainable_mask,
    usable,
)
from forensics.diagnose.warmup import warmup_end
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, IntArray

LIMIT_OF_DTYPE = {"bfloat16": 1.0, "float16": 2.0**-3}
"""How much finer than bf16 a 16-bit format resolves: fp16 keeps 10 bits of fraction, bf16 7."""


@dataclass(frozen=True)
class Thresholds:
    """What is far too large or small, and for how long."""

    high: float = threshold(0.1, "after 20 steps healthy matrices lie near 1e-3")
    low: float = threshold(1e-8, "half the spacing of fp32 numbers is 6e-8: hardly any bit moves")
    half: float = threshold(
        2.0**-10, "78 % of the elements of a bf16 weight stay put at this ratio"
    )
    snapshots: int = threshold(8, "fewer are an episode and not a state")
    settle: int = threshold(100, "half the matrices exceed 0.1 in 20 healthy first steps")
    rate: float = threshold(0.1, "share of the peak rate; below, a decayed schedule is the reason")


@dataclass(frozen=True)
class _View:
    """Snapshots × weight matrices.

    Attributes:
        steps: shape (W,).
        names: length M.
        ratios: shape (W, M), NaN where unknown.
        settled: after the warm-up and the first steps, shape (W,).
        decayed: where the rate is below a tenth of its peak, shape (W,).
        half_limit: the 16-bit limit of each matrix, 0 for fp32 ones, shape (M,).
    """

    steps: IntArray
    names: tuple[str, ...]
    ratios: Floats
    settled: BoolArray
    decayed: BoolArray
    half_limit: Floats


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    view = _view(signals, thresholds)
    if view is None or not view.names:
        return "no weight matrix with updates in the snapshots"
    return too_few_snapshots(view.steps[view.settled], thresholds.snapshots)


@rule(
    thresholds=Thresholds,
    parts=("params.update_l2", "params.value_l2"),
    too_little=_too_little,
)
def update_ratio(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding for updates too large, too small, and lost in 16 bits."""
    view = _view(signals, thresholds)
    if view is None or len(view.steps) < thresholds.snapshots or not view.names:
        return
    first, last = longest_runs(view.settled[:, None] & (view.ratios > thresholds.high))
    yield from _too_large(view, first, last, last - first + 1 >= thresholds.snapshots, thresholds)
    judged = (view.settled & ~view.decayed)[:, None] & (view.ratios > 0)
    enough = judged.sum(axis=0) >= thresholds.snapshots
    low = (~judged | (view.ratios < thresholds.low)).all(axis=0) & enough
    rounded = judged & (view.ratios < view.half_limit)
    lost = (4 * rounded.sum(axis=0) >= 3 * judged.sum(axis=0)) & enough & (view.half_limit > 0)
    yield from _too_small(view, judged, low & ~lost, thresholds)
    yield from _rounded_away(view, judged, lost)


def _view(signals: Signals, thresholds: Thresholds) -> _View | None:
    updates, weights = signals.param_matrix("update_l2"), signals.param_matrix("value_l2")
    if updates is None or weights is None or not same_axes(updates, weights):
        return None
    info = signals.parameter_info
    columns = np.flatnonzero(matrix_mask(updates.names, info) & trainable_mask(updates.names, info))
    start = warmup_end(signals)
    begin = signals.step_at(0) if len(signals) else int(updates.steps[0])
    rows = np.flatnonzero(updates.present.any(axis=1))
    size = usable(weights)[np.ix_(rows, columns)]
    ratios = usable(updates)[np.ix_(rows, columns)] / np.where(size > 0, size, np.float32(np.nan))
    names = tuple(updates.names[column] for column in columns)
    return _View(
        steps=updates.steps[rows],
        names=names,
        ratios=np.asarray(ratios, dtype=np.float32),
        settled=updates.steps[rows] >= max(start, begin + thresholds.settle),
        decayed=_decayed(signals, updates.steps[rows], thresholds.rate),
        half_limit=np.array(
            [
                thresholds.half * LIMIT_OF_DTYPE.get(info[name].dtype if name in info else "", 0.0)
                for name in names
            ],
            dtype=np.float32,
        ),
    )


def _decayed(signals: Signals, steps: IntArray, share: float) -> BoolArray:
    rate = signals.lr[np.isfinite(signals.lr)]
    if len(rate) == 0:
        return np.zeros(len(steps), dtype=bool)
    now = signals.lr[signals.rows_at(steps)]
    return np.asarray(now < share * rate.max(), dtype=bool)


def _too_large(
    view: _View, first: IntArray, last: IntArray, chosen: BoolArray, thresholds: Thresholds
) -> Iterator[Finding]:
    if not chosen.any():
        return
    level = column_medians(np.where(view.ratios > thresholds.high, view.ratios, np.float32(np.nan)))
    column = int(np.argmax(np.where(chosen, level, 0)))
    yield _finding(
        view,
        column,
        (int(first[chosen].min()), int(last[chosen].max())),
        threshold=thresholds.high,
        message=f"each update of {_who(view, column, chosen)} is {number(float(level[column]), 2)} "
        f"of the weight, {int(last[column] - first[column]) + 1} snapshots long; 0.001 is usual",
        cause="A learning rate too high for the scale of these weights.",
        remedy="Lower the rate (for this layer at least) until the ratio is near 1e-3, or lengthen "
        "the warm-up.",
    )


def _too_small(
    view: _View, judged: BoolArray, chosen: BoolArray, thresholds: Thresholds
) -> Iterator[Finding]:
    if not chosen.any():
        return
    level = column_medians(np.where(judged, view.ratios, np.float32(np.nan)))
    column = int(np.argmin(np.where(chosen, level, np.inf)))
    yield _finding(
        view,
        column,
        _extent(judged[:, column], view.ratios[:, column], thresholds.low),
        threshold=None,
        message=f"updates of {_who(view, column, chosen)} are {number(float(level[column]))} of "
        "the weight all along: too small for fp32 to add",
        cause="A rate or a gradient next to zero for these layers.",
        remedy="Compare the learning rate of the group and the gradient norm of the layer with "
        "those of layers that learn.",
    )


def _rounded_away(view: _View, judged: BoolArray, chosen: BoolArray) -> Iterator[Finding]:
    if not chosen.any():
        return
    level = column_medians(np.where(judged, view.ratios, np.float32(np.nan)))
    column = int(np.argmin(np.where(chosen, level / view.half_limit, np.inf)))
    limit = float(view.half_limit[column])
    yield _finding(
        view,
        column,
        _extent(judged[:, column], view.ratios[:, column], limit),
        threshold=limit,
        message=f"{_who(view, column, chosen)} is stored in 16 bits and its updates are "
        f"{number(float(level[column]))} of it (limit {number(limit)}): most elements stay put",
        cause="The update is less than half the spacing of the weight's own number format, so "
        "adding it changes nothing.",
        remedy="Keep fp32 master weights (fp32 parameters under autocast), or use stochastic "
        "rounding or Kahan summation; with one of these in use, ignore this.",
    )


def _extent(judged: BoolArray, ratios: Floats, limit: float) -> tuple[int, int]:
    """The judged snapshots, and those before them in which it was no larger either."""
    rows = np.flatnonzero(judged)
    above = np.flatnonzero(ratios[: rows[0]] >= limit)
    return int(above[-1]) + 1 if len(above) else 0, int(rows[-1])


def _who(view: _View, column: int, chosen: BoolArray) -> str:
    others = int(chosen.sum()) - 1
    return f"{view.names[column]} (and {others} more)" if others else view.names[column]


def _finding(
    view: _View,
    column: int,
    rows: tuple[int, int],
    *,
    threshold: float | None,
    message: str,
    cause: str,
    remedy: str,
) -> Finding:
    picked = spread_out(np.arange(rows[0], rows[1] + 1))
    return Finding(
        rule="update-ratio",
        severity=Severity.WARNING,
        message=message,
        first_step=int(view.steps[rows[0]]),
        last_step=int(view.steps[rows[1]]),
        subject=view.names[column],
        evidence=(
            Evidence(
                signal=f"update_l2 / value_l2 of {view.names[column]}",
                steps=tuple(int(step) for step in view.steps[picked]),
                values=tuple(float(value) for value in view.ratios[picked, column]),
                threshold=threshold,
            ),
        ),
        cause=cause,
        remedy=remedy,
    )
