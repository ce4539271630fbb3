"""Activations near the end of the number format, or jumping, dead or saturated.

What it detects
    Per module and over the snapshots: the largest absolute value within 2^3 of the format's
    limit (65,504 in fp16), or already non-finite; units that are all exactly 0 to the end; and,
    as an info, a variance that jumps tenfold from one snapshot to the next, and outputs that all
    sit at the ends of a bounded activation (tanh, sigmoid). One finding a kind.

Why it matters
    The loss scale does not reach the forward pass: an activation that overflows makes the loss
    NaN at any scale. What is dead or saturated passes no gradient on.

Evidence
    The statistic of the module that came first, over the snapshots.

Silent when
    The format is bf16 or fp32 (whose limit is 3e38), a value stands still at its extreme from
    the first snapshot on (a mask's filling), nothing led up to an Inf (the log of 0, a bad batch),
    fewer than 3 snapshots show it, or a module is partly zero, as after ReLU or dropout.
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
    earliest_start,
    same_axes,
    too_few_snapshots,
    usable,
)
from forensics.diagnose.wording import factor, number, percent
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import BoolArray, IntArray

LIMITS = {"fp16": 65504.0}
"""Largest finite number of the formats in which activations overflow in practice."""
STANDING = 1.01
"""A maximum that stays within 1 % all along is a constant somebody put there."""

PAST = 3
"""Snapshots that a jump stands out from: each of them, so that steady growth is no jump."""


@dataclass(frozen=True)
class Thresholds:
    """When an activation is at risk."""

    octaves: float = threshold(3.0, "three doublings: a few hundred steps of typical growth")
    lasting: int = threshold(3, "snapshots; a single one is an odd batch")
    variance: float = threshold(10.0, "a change of scale by 3 between two snapshots")
    dead: int = threshold(5, "snapshots to the end with every unit at 0")
    dead_steps: int = threshold(20, "zero-initialised outputs are 0 in the first steps only")
    saturated: float = threshold(0.99, "RMS over maximum: all units at the ends of the range")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    taken = [signals.activation_matrix(name) for name in ("absmax", "zero_share", "std")]
    most = max((matrix.steps for matrix in taken if matrix is not None), key=len)
    return too_few_snapshots(most, max(thresholds.lasting, thresholds.dead))


@rule(
    thresholds=Thresholds,
    parts=("activations.absmax|activations.zero_share|activations.std",),
    too_little=_too_little,
)
def activation_overflow_risk(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding of each kind: overflow, dead, jump, saturation."""
    absmax = signals.activation_matrix("absmax")
    if absmax is not None and signals.precision in LIMITS:
        yield from _near_limit(absmax, LIMITS[signals.precision], thresholds)
    zeros = signals.activation_matrix("zero_share")
    if zeros is not None:
        yield from _dead(zeros, thresholds)
    std, mean = signals.activation_matrix("std"), signals.activation_matrix("mean")
    if std is not None:
        yield from _jump(std, thresholds)
    if std is not None and mean is not None and absmax is not None:
        yield from _saturated(absmax, mean, std, thresholds)


def _near_limit(matrix: ParamMatrix, limit: float, thresholds: Thresholds) -> Iterator[Finding]:
    """The module that first comes within three octaves of the limit, and how fast it gets there."""
    written = matrix.present & ~np.isnan(matrix.values)
    size = np.where(written, np.abs(matrix.values.astype(np.float32)), np.float32(0))
    size[:, _standing(size)] = 0
    near = size >= limit / 2.0**thresholds.octaves
    over = size > limit
    # An Inf that nothing led up to (a mask, log of 0, a bad batch) is no overflow of this module.
    approached = (near & ~over).sum(axis=0)
    chosen = (approached >= thresholds.lasting) | ((approached > 0) & over.any(axis=0))
    if not chosen.any():
        return
    first = np.where(chosen, np.argmax(near, axis=0), len(size))
    column = int(np.argmin(first))
    row, last = int(first[column]), int(np.flatnonzero(near[:, column])[-1])
    finite = np.where(size[:, column] <= limit, size[:, column], 0)
    peak = float(finite.max())
    name = matrix.names[column]
    reached = "and overflows" if over[:, column].any() else f"limit {number(limit)}"
    yield _finding(
        matrix,
        (column, row, last),
        "absmax",
        severity=Severity.ERROR if over[:, column].any() else Severity.WARNING,
        message=f"activations of {name} reach {number(peak)} ({reached})"
        + _pace(matrix.steps, finite, row, limit)
        + (f"; {int(chosen.sum()) - 1} more modules near it" if chosen.sum() > 1 else ""),
        cause="The output of this module grows; in fp16 it overflows whatever the loss scale.",
        remedy=f"Run {name} in bf16 or fp32, or normalise what it multiplies; find what makes it "
        f"grow before step {int(matrix.steps[row]):,}.",
        threshold=limit,
    )


def _standing(size: Floats) -> BoolArray:
    """Columns whose maximum never moves: the filling of a mask."""
    lowest = np.where(size > 0, size, np.inf).min(axis=0, initial=np.inf)
    highest = size.max(axis=0, initial=0.0)
    return np.asarray(np.isfinite(highest) & (highest <= STANDING * lowest), dtype=bool)


def _pace(steps: IntArray, size: Floats, row: int, limit: float) -> str:
    """How far it grew up to here and, where it goes on growing, when it meets the limit."""
    known = np.flatnonzero(size > 0)
    past = known[known <= max(row, int(known[0]))]
    start = float(np.median(size[past[: max(1, len(past) // 2)]]))
    text = f", {factor(float(size.max()) / start)} since step {int(steps[known[0]]):,}"
    recent = known[-8:]
    if len(recent) < 4 or steps[recent[-1]] == steps[recent[0]]:
        return text
    slope = np.polyfit((steps[recent] - steps[recent[0]]).astype(float), np.log(size[recent]), 1)[0]
    left = np.log(limit / float(size[recent[-1]])) / slope if slope > 0 else np.inf
    if 0 < left < 10 * float(steps[recent[-1]] - steps[0] + 1):
        text += f"; at this pace it overflows near step {int(steps[recent[-1]] + left):,}"
    return text


def _dead(matrix: ParamMatrix, thresholds: Thresholds) -> Iterator[Finding]:
    """Modules whose every unit is 0 in the last snapshots."""
    alive = matrix.present & (matrix.values < 1)
    taken = matrix.present.sum(axis=0)
    rows = len(matrix.steps)
    begin = np.where(alive.any(axis=0), rows - np.argmax(alive[::-1], axis=0), 0)
    tail = np.array([matrix.present[b:, c].sum() for c, b in enumerate(begin)], dtype=np.int64)
    since = matrix.steps[np.minimum(begin, rows - 1)]
    chosen = (tail >= thresholds.dead) & (taken > 0)
    chosen &= matrix.steps[-1] - since >= thresholds.dead_steps
    if not chosen.any() or chosen.all():
        return
    column = int(np.flatnonzero(chosen)[0])
    name, first = matrix.names[column], int(begin[column])
    yield _finding(
        matrix,
        (column, first, rows - 1),
        "zero_share",
        severity=Severity.WARNING,
        message=f"every unit of {name} is exactly 0 from step {int(matrix.steps[first]):,} on"
        + (f", and so are {int(chosen.sum()) - 1} more modules" if chosen.sum() > 1 else ""),
        cause="Dead units: a bias or weight pushed the input below 0 for good (a rate too high at "
        "some step), or a gate that stays shut.",
        remedy=f"Look at the update of the layer before {name} just before that step; lower the "
        "rate there, or use an activation with a slope below 0.",
        threshold=1.0,
    )


def _jump(matrix: ParamMatrix, thresholds: Thresholds) -> Iterator[Finding]:
    """The module whose variance first jumps from that of each of the three snapshots before."""
    std = usable(matrix)
    if len(std) <= PAST:
        return
    past = np.maximum.reduce([std[at : len(std) - PAST + at] for at in range(PAST)])
    grown = np.full(std.shape, np.nan, dtype=np.float32)
    grown[PAST:] = np.square(std[PAST:] / np.where(past > 0, past, np.float32(np.nan)))
    jumps = grown >= thresholds.variance
    if not jumps.any():
        return
    row = int(np.argmax(jumps.any(axis=1)))
    column = int(np.argmax(np.where(jumps[row], grown[row], 0)))
    last = int(np.flatnonzero(jumps[:, column])[-1])
    yield _finding(
        matrix,
        (column, row, last),
        "std",
        severity=Severity.INFO,
        message=f"the variance of {matrix.names[column]} jumps "
        f"{factor(float(grown[row, column]))} at step {int(matrix.steps[row]):,}",
        cause="An odd batch, or a layer before it that changed its scale.",
        remedy="Compare with the loss and the gradient norm at this step; alone it is harmless.",
        threshold=None,
    )


def _saturated(
    absmax: ParamMatrix, mean: ParamMatrix, std: ParamMatrix, thresholds: Thresholds
) -> Iterator[Finding]:
    """Modules bounded by 1 whose outputs all sit at an end: ±1, or 0 and 1."""
    if not (same_axes(absmax, mean) and same_axes(absmax, std)) or len(absmax.steps) == 0:
        return
    top, level, spread = usable(absmax), usable(mean), usable(std)
    square = np.square(level) + np.square(spread)
    bounded = (top <= STANDING) & (top > 1 / STANDING) & (spread > 0)
    symmetric = np.sqrt(square) >= thresholds.saturated
    onesided = square >= thresholds.saturated * level
    full = bounded & (symmetric | ((level > 0) & onesided))
    known = bounded.sum(axis=0)
    chosen = (full.sum(axis=0) == known) & (known >= thresholds.dead)
    if not chosen.any():
        return
    column = int(np.flatnonzero(chosen)[0])
    rows = np.flatnonzero(full[:, column])
    share = float(np.nanmedian(np.sqrt(square[rows, column])))
    yield _finding(
        std,
        (column, int(rows[0]), int(rows[-1])),
        "std",
        severity=Severity.INFO,
        message=f"all outputs of {std.names[column]} sit at the ends of its range "
        f"(RMS {percent(share)} of the maximum)",
        cause="The input of a bounded activation is far from 0, where its slope vanishes.",
        remedy="Normalise the input of this module or initialise the layer before it smaller.",
        threshold=None,
    )


def _finding(
    matrix: ParamMatrix,
    place: tuple[int, int, int],
    statistic: str,
    *,
    severity: Severity,
    message: str,
    cause: str,
    remedy: str,
    threshold: float | None,
) -> Finding:
    column, first, last = place
    picked = spread_out(np.flatnonzero(matrix.present[: last + 1, column])[-24:])
    return Finding(
        rule="activation-overflow-risk",
        severity=severity,
        message=message,
        first_step=int(matrix.steps[first]),
        last_step=int(matrix.steps[last]),
        earliest_step=earliest_start(matrix.steps, first),
        subject=matrix.names[column],
        evidence=(
            Evidence(
                signal=f"{statistic} of {matrix.names[column]}",
                steps=tuple(int(step) for step in matrix.steps[picked]),
                values=tuple(float(value) for value in matrix.values[picked, column]),
                threshold=threshold,
            ),
        ),
        cause=cause,
        remedy=remedy,
    )
