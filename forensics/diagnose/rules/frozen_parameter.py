"""A parameter that never moves: no gradient, a zero gradient, or an update that does nothing.

What it detects
    Three ways not to learn, over the snapshots of steps that were really taken: the gradient is
    exactly 0 each time while others are not; no gradient arrives at all although one is
    required; the gradient is there but the update is exactly 0, because no optimizer holds the
    parameter or because a half-precision weight rounds the update away. One finding a way.

Why it matters
    The loss falls a little, from what the other layers learn, and nothing else tells that a part
    of the network is dead, detached or forgotten.

Evidence
    The parameter's gradient or update norm beside the median of the others.

Silent when
    ``requires_grad`` is off, the learning rate is 0, every gradient is 0, there are fewer than 5
    snapshots or they span fewer than 20 steps, or optimizers take turns and one had none in any
    of them. From 3 snapshots on it tells what no branch that sits out explains: all first layers
    without a gradient (an info and an open question where there are but 1 or 2), a gradient without
    an update; from 2 on a parameter whose place in the optimizer another one has, which is not the
    model's. Biases, normalisation weights, single unused branches and a body that no optimizer
    holds while a head is trained are an info.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from forensics.diagnose.cut_graph import at_rest, cut_so_far, first_ones
from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    Floats,
    matrix_mask,
    row_medians,
    same_axes,
    too_few_snapshots,
    trainable_mask,
    usable,
)
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """How much must be seen before a parameter counts as frozen."""

    snapshots: int = threshold(5, "a branch or expert can sit out a few batches")
    swapped: int = threshold(2, "a stranger in the optimizer's hands that no gradient reaches")
    few: int = threshold(3, "all layers before some point do not sit out three batches together")
    steps: int = threshold(20, "zero-initialised layers block gradients in the first steps only")


@dataclass(frozen=True)
class _View:
    """The snapshots that count.

    Attributes:
        names: length P.
        steps: shape (W,).
        values: gradient norms, shape (W, P), NaN where none was taken.
        matrices: which names are weight matrices, shape (P,).
    """

    signals: Signals
    names: tuple[str, ...]
    steps: IntArray
    values: Floats
    matrices: BoolArray

    def group(self, name: str) -> int:
        """The parameter's optimizer group; 0 where run.json does not say."""
        info = self.signals.parameter_info.get(name)
        return 0 if info is None else info.group

    def is_half(self, name: str) -> bool:
        """Is the weight itself stored in 16 bits?"""
        info = self.signals.parameter_info.get(name)
        return info is not None and info.dtype in ("float16", "bfloat16")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    matrix = signals.param_matrix("grad_l2")
    if matrix is None:
        return ""
    taken = matrix.steps[_working(signals, matrix)]
    return too_few_snapshots(taken, thresholds.snapshots, thresholds.steps)


@rule(thresholds=Thresholds, parts=("params.grad_l2",), too_little=_too_little)
def frozen_parameter(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding for each way of not learning."""
    matrix = signals.param_matrix("grad_l2")
    if matrix is None:
        return
    yield from _so_far(signals)
    rows = _working(signals, matrix)
    steps = matrix.steps[rows]
    if len(rows) < thresholds.swapped or steps[-1] - steps[0] < thresholds.steps:
        return
    least = min(thresholds.snapshots, len(rows))
    few = len(rows) < thresholds.snapshots
    matrices = matrix_mask(matrix.names, signals.parameter_info)
    view = _View(signals, matrix.names, steps, usable(matrix)[rows], matrices)
    trainable = trainable_mask(matrix.names, signals.parameter_info)
    taken = matrix.present[rows].sum(axis=0)
    trainable &= ~at_rest(signals, matrix.names, taken > 0)
    moving = (matrix.present[rows] & (matrix.values[rows] != 0)).any(axis=0)
    replaced = _replaced(view, (taken == 0) & trainable)
    yield from _replaced_finding(view, replaced)
    if len(rows) < thresholds.few:
        return
    trainable &= ~np.isin(view.names, list(replaced))
    held = np.array([view.group(name) >= 0 for name in view.names], dtype=bool)
    yield from _outside(view, trainable & ~held)
    trainable &= held
    zero, none = trainable & ~moving & (taken >= least), trainable & (taken == 0)
    if not few or first_ones(zero, matrices).any():
        yield from _zero_gradient(view, zero)
    if not few or first_ones(none, matrices).any():
        yield from _no_gradient(view, none)
    updates = signals.param_matrix("update_l2")
    if updates is not None and same_axes(updates, matrix):
        still = updates.present[rows] & (updates.values[rows] == 0)
        enough = still.sum(axis=0) >= max(least, 1)
        still = enough & (still | ~updates.present[rows]).all(axis=0)
        yield from _no_update(view, trainable & still & (view.values > 0).all(axis=0))


def _so_far(signals: Signals) -> Iterator[Finding]:
    """What one or two snapshots show, where more of them would make it a fault."""
    cut = signals.derived(cut_so_far)
    if cut is not None:
        yield Finding(
            rule="frozen-parameter",
            severity=Severity.INFO,
            message=f"{cut.told}: too few snapshots to say that none ever reaches it",
            first_step=cut.steps[0],
            last_step=cut.steps[-1],
            subject=cut.last,
            cause="Nothing, where these layers rest in the first steps; else the graph is cut "
            "after them: detach, .data, .item, no_grad, a trip through numpy.",
            remedy="Record again with a snapshot every few steps: three of them decide.",
        )


def _working(signals: Signals, matrix: ParamMatrix) -> IntArray:
    """Snapshots of steps that were taken, at a positive rate, with some gradient above zero."""
    alive = (usable(matrix) > 0).any(axis=1)
    if len(signals) == 0:
        return np.flatnonzero(alive)
    rows = signals.rows_at(matrix.steps)
    logged = signals.step[rows] == matrix.steps
    idle = logged & (signals.skipped[rows] | (signals.lr[rows] == 0))
    return np.flatnonzero(alive & ~idle)


def _zero_gradient(view: _View, frozen: BoolArray) -> Iterator[Finding]:
    if not frozen.any():
        return
    finding = _finding(view, frozen, serious=frozen & view.matrices)
    tiny = view.signals.precision == "fp16"
    yield replace(
        finding,
        message=f"the gradient of {_who(finding, frozen)} is exactly 0 in all {len(view.steps)} "
        f"snapshots, where the median parameter has {number(_usual(view, frozen))}",
        cause="Its output reaches the loss with weight 0: units that never activate, a gate or "
        "mask that is 0" + (", or fp16 gradients below 6e-8." if tiny else "."),
        remedy=f"Look at what follows {finding.subject} on the way to the loss; the share of zeros "
        "in the activations there tells whether the units are dead.",
    )


def _no_gradient(view: _View, frozen: BoolArray) -> Iterator[Finding]:
    if not frozen.any() or not view.signals.parameter_info:
        return
    serious = first_ones(frozen, view.matrices)
    finding = _finding(view, frozen, serious=serious)
    if serious.any():
        cause = "The graph is cut after it: detach, .data, .item, no_grad, a trip through numpy."
        remedy = f"Follow the output of {finding.subject} to the loss and look for what detaches "
        remedy += "it. If it is meant to be frozen, set requires_grad to False."
    else:
        cause = "The forward pass does not use it, or not in the steps that were recorded."
        remedy = f"If {finding.subject} should learn, check that forward uses it; else leave it."
    yield replace(
        finding,
        message=f"no gradient ever reached {_who(finding, frozen)} in {len(view.steps)} "
        "snapshots, although one is required",
        cause=cause,
        remedy=remedy,
    )


def _replaced(view: _View, silent: BoolArray) -> dict[str, str]:
    """What an optimizer holds in vain, by name: the parameter of the model in its place.

    The held one is not the model's own and gets no gradient; one of the model's, of the same shape,
    wants a gradient and is in no optimizer: it took the other's place.
    """
    info = view.signals.parameter_info
    free = [i for i in info.values() if i.group < 0 and i.requires_grad]
    found: dict[str, str] = {}
    for name in np.asarray(view.names)[silent].tolist():
        foreign = name.startswith("optimizers.") and name in info
        same = (i for i in free if foreign and i.shape == info[name].shape)
        if (taken := next(same, None)) is not None:
            free.remove(taken)
            found[name] = taken.name
    return found


def _replaced_finding(view: _View, replaced: dict[str, str]) -> Iterator[Finding]:
    if not replaced:
        return
    frozen = np.isin(view.names, list(replaced))
    own = list(replaced.values())
    more = f" and {len(own) - 1} more" if len(own) > 1 else ""
    yield replace(
        _finding(view, frozen, serious=frozen),
        subject=own[0],
        message=f"{own[0]}{more} is never updated: no optimizer holds it, but one of the same "
        "shape that is not in the model and gets no gradient",
        cause="A part of the model was replaced (a new head, a copy, a wrapper) after the "
        "optimizer had been made.",
        remedy="Make the optimizer after the model is whole.",
    )


def _outside(view: _View, frozen: BoolArray) -> Iterator[Finding]:
    """Parameters that want a gradient and that no optimizer holds.

    Where they are the greater part, a head alone is trained on purpose.
    """
    yield from _still(
        view,
        frozen,
        serious=frozen & view.matrices & (2 * frozen.sum() < len(view.names)),
        message=f"is never updated in {len(view.steps)} snapshots: no optimizer holds it",
        cause="It was left out of the parameter groups, or was added or replaced after the "
        "optimizer had been made.",
        remedy="Give it to the optimizer if it should learn, or set requires_grad to False.",
    )


def _no_update(view: _View, frozen: BoolArray) -> Iterator[Finding]:
    """Split by reason: rounded away, or left where it is."""
    there = f"did not move in any of {len(view.steps)} snapshots although its gradient is there"
    rounded = frozen & np.array([view.is_half(name) for name in view.names], dtype=bool)
    yield from _still(
        view,
        rounded,
        serious=rounded & view.matrices,
        message=f"{there}: its updates are rounded away in 16 bits",
        cause="The update is less than half the spacing of the weight's own number format.",
        remedy="Keep fp32 master weights (fp32 parameters under autocast), or use an optimizer "
        "with stochastic rounding or Kahan summation.",
    )
    rest = frozen & ~rounded
    moved = np.array([_has_rate(view, name) for name in view.names], dtype=bool)
    yield from _still(
        view,
        rest,
        serious=rest & view.matrices & moved,
        message=there,
        cause="The optimizer holds an older copy of it, or its update is too small to show.",
        remedy="Check the learning rate of its parameter group, and that the optimizer holds this "
        "very tensor.",
    )


def _still(
    view: _View, frozen: BoolArray, *, serious: BoolArray, message: str, cause: str, remedy: str
) -> Iterator[Finding]:
    if not frozen.any():
        return
    finding = _finding(view, frozen, serious=serious)
    who = _who(finding, frozen)
    yield replace(finding, message=f"{who} {message}", cause=cause, remedy=remedy)


def _has_rate(view: _View, name: str) -> bool:
    """Is the rate of this parameter's own group positive (or unknown)?"""
    group = view.group(name)
    column = view.signals.column(f"lr_{group}") if group > 0 else view.signals.lr
    return not bool(np.all(column[np.isfinite(column)] == 0)) or not np.isfinite(column).any()


def _finding(view: _View, frozen: BoolArray, *, serious: BoolArray) -> Finding:
    """The skeleton; the subject is the frozen one nearest the loss, where the signal ends."""
    column = int(np.flatnonzero(serious if serious.any() else frozen)[-1])
    picked = spread_out(np.arange(len(view.steps)), 6)
    steps = tuple(int(step) for step in view.steps[picked])
    own = view.values[picked, column]
    others = row_medians(view.values[np.ix_(picked, ~frozen)]) if (~frozen).any() else own
    there = np.isfinite(own)
    evidence = (
        Evidence(
            signal=f"grad_l2 of {view.names[column]}",
            steps=tuple(step for step, known in zip(steps, there, strict=True) if known),
            values=tuple(float(value) for value in own[there]),
        ),
        Evidence(
            signal="grad_l2 of the median other parameter",
            steps=steps,
            values=tuple(float(value) for value in others),
        ),
    )
    return Finding(
        rule="frozen-parameter",
        severity=Severity.WARNING if serious.any() else Severity.INFO,
        message="",
        first_step=int(view.steps[0]),
        last_step=int(view.steps[-1]),
        subject=view.names[column],
        evidence=evidence if there.any() else evidence[1:],
    )


def _who(finding: Finding, frozen: BoolArray) -> str:
    others = int(frozen.sum()) - 1
    return f"{finding.subject} and {others} more" if others else finding.subject


def _usual(view: _View, frozen: BoolArray) -> float:
    others = view.values[:, ~frozen]
    finite = others[np.isfinite(others)]
    return float(np.median(finite)) if len(finite) else float("nan")
