"""Which parameter went bad first: snapshots, the log's own word, or checkpoints.

Backward runs from the loss to the input, so of the parameters whose gradients are non-finite in one
step the source is the one whose gradient arrives first; those that arrived before it and are still
finite bracket the place from the side of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forensics.diagnose.finding import Evidence
from forensics.diagnose.masked_losses import loss_is_filtered
from forensics.diagnose.ranks import finite_on_all
from forensics.diagnose.reward_driven import one_of_several
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import counted
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.run import CheckpointInfo
from forensics.runlog.schema import SKIP_NONFINITE_GRAD
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class Culprit:
    """The first bad parameter of one step.

    Attributes:
        name: the parameter nearest the origin.
        what: ``gradient`` or ``weight``.
        bad: names of all bad ones, in the order in which they were reached.
        total: how many parameters were looked at.
        elements: non-finite elements of ``name``; 0 where only the name is known.
        finite_before: still-finite neighbour reached just before it, or empty.
        finite_after: the first still-finite one reached after it, or empty.
    """

    name: str
    what: str
    bad: tuple[str, ...]
    total: int
    elements: int = 0
    finite_before: str = ""
    finite_after: str = ""

    @property
    def everywhere(self) -> bool:
        """Is every parameter bad, so that the order says little?"""
        return self.total > 1 and len(self.bad) == self.total

    @property
    def alone(self) -> bool:
        """Is it the only bad gradient, with finite ones that arrived after it?"""
        return self.what == "gradient" and len(self.bad) == 1 and bool(self.finite_after)


def elements(count: int) -> str:
    """A count of elements for a message: ``1 element``, ``4,096 elements``."""
    return counted(count, "element")


def origin(culprit: Culprit, loss: float) -> str:
    """Where a bad gradient was born, as the report and the story of the parameters tell it.

    Args:
        culprit: the first bad gradient of a step.
        loss: of that step, as ``loss_at`` gives it; NaN or Inf where it was bad or is not known.
    """
    if culprit.everywhere:
        if math.isfinite(loss):
            return (
                "Every gradient is bad and the loss is finite, so the value was born in backward "
                "of the loss, or of what stands between it and the last layer."
            )
        return (
            "Every gradient is bad, so the value is no single layer's: it came with the loss, from "
            "the batch or the forward pass, or was born in backward before the last layer."
        )
    if culprit.alone:
        return (
            f"No other gradient is bad, so the value was born where that of {culprit.name} itself "
            f"is computed, and not on backward's way through the layers."
        )
    if culprit.finite_before:
        return (
            f"The value was born in backward between {culprit.finite_before}, which is nearer the "
            f"loss and still finite, and {culprit.name}."
        )
    return f"The value was born in backward at {culprit.name} or between it and the loss."


def gradient_order(signals: Signals, names: Sequence[str]) -> IntArray:
    """Columns in the order in which gradients arrive; shape (P,).

    By run.json; names it does not know, and all where it knows none, in reverse network order.
    """
    manifest = signals.run.manifest
    arrival = manifest.arrival_order if manifest is not None else ()
    place = {name: i for i, name in enumerate(arrival)}
    count = len(names)
    keys = [place.get(name, len(place) + count - column) for column, name in enumerate(names)]
    return np.argsort(np.array(keys, dtype=np.int64), kind="stable")


def bad_cells(matrix: ParamMatrix | None) -> BoolArray:
    """Where a count of non-finite elements is above 0, shape (S, P); (0, 0) without a matrix."""
    if matrix is None:
        return np.zeros((0, 0), dtype=bool)
    return np.asarray((matrix.values > 0) & matrix.present, dtype=bool)


def unexplained_snapshots(signals: Signals, matrix: ParamMatrix) -> BoolArray:
    """Snapshots that are not of an overflow which the loss scaler dealt with, shape (S,)."""
    if len(signals) == 0:
        return np.ones(len(matrix.steps), dtype=bool)
    rows = np.minimum(np.searchsorted(signals.step, matrix.steps), len(signals) - 1)
    same = signals.step[rows] == matrix.steps
    return np.asarray(~(same & signals.scaling.routine[rows]), dtype=bool)


def steps_with_bad(signals: Signals, statistic: str, kind: str = "param") -> IntArray:
    """Steps of the snapshots in which a count is above 0 and no overflow of the scaler explains it.

    A bad weight or state is never explained by an overflow; a bad gradient may be.
    """
    matrix = signals.param_matrix(statistic, kind)
    if matrix is None:
        return np.empty(0, dtype=np.int64)
    bad = bad_cells(matrix).any(axis=1)
    if statistic == "grad_nonfinite":
        bad &= unexplained_snapshots(signals, matrix)
    return np.asarray(matrix.steps[bad], dtype=np.int64)


def steps_named_in_log(signals: Signals) -> IntArray:
    """Steps whose skip reason names a parameter and that no overflow of the scaler explains."""
    named = signals.reason_starts(f"{SKIP_NONFINITE_GRAD}:") & ~signals.scaling.routine
    return np.asarray(signals.step[named], dtype=np.int64)


def bad_in_checkpoint(checkpoint: CheckpointInfo, kinds: Sequence[str]) -> tuple[str, ...]:
    """Names of the non-finite tensors of some kinds, as the health file lists them."""
    listed = checkpoint.health.get("bad")
    if not isinstance(listed, list):
        return ()
    return tuple(
        str(entry.get("name", "")).removeprefix("model.")
        for entry in listed
        if isinstance(entry, dict) and entry.get("kind") in kinds
    )


def nonfinite_evidence(
    signals: Signals, culprit: Culprit, step: int, kind: str = "param"
) -> tuple[Evidence, ...]:
    """The culprit's count of non-finite elements at a step and the snapshots around it."""
    statistic = "grad_nonfinite" if culprit.what == "gradient" else "value_nonfinite"
    matrix = signals.param_matrix(statistic, kind)
    if matrix is None or culprit.name not in matrix.names:
        return ()
    column = matrix.names.index(culprit.name)
    at = int(np.searchsorted(matrix.steps, step))
    near = slice(max(0, at - 2), at + 2)
    kept = matrix.present[near, column]
    return (
        Evidence(
            signal=f"{statistic}({culprit.name})",
            steps=tuple(int(s) for s in matrix.steps[near][kept]),
            values=tuple(float(v) for v in matrix.values[near, column][kept]),
        ),
    )


def culprit_of(signals: Signals, step: int) -> Culprit | None:
    """The first bad parameter of a step by its snapshot, else by the log's skip reason."""
    for statistic in ("value_nonfinite", "grad_nonfinite"):
        found = _in_snapshot(signals, signals.param_matrix(statistic), statistic, step)
        if found is not None:
            return found
    name = named_in_log(signals, step)
    return Culprit(name, "gradient", (name,), 0) if name else None


def named_in_log(signals: Signals, step: int) -> str:
    """The parameter that the skip reason of a step names, or the empty text."""
    row = int(np.searchsorted(signals.step, step))
    if row >= len(signals) or signals.step_at(row) != step:
        return ""
    reason, _, name = signals.skip_reason(row).partition(":")
    return name if reason == SKIP_NONFINITE_GRAD else ""


def _in_snapshot(
    signals: Signals, matrix: ParamMatrix | None, statistic: str, step: int
) -> Culprit | None:
    if matrix is None:
        return None
    at = int(np.searchsorted(matrix.steps, step))
    if at >= len(matrix.steps) or int(matrix.steps[at]) != step:
        return None
    bad = bad_cells(matrix)[at]
    if not bad.any():
        return None
    backward = statistic == "grad_nonfinite"
    order = gradient_order(signals, matrix.names) if backward else np.arange(len(matrix.names))
    seen = order[matrix.present[at][order]]
    reached = np.flatnonzero(bad[seen])
    first = int(reached[0])
    later = np.flatnonzero(~bad[seen[first:]])
    return Culprit(
        name=matrix.names[seen[first]],
        what="gradient" if backward else "weight",
        bad=tuple(matrix.names[column] for column in seen[reached]),
        total=len(seen),
        elements=int(matrix.values[at, seen[first]]),
        finite_before=matrix.names[seen[first - 1]] if first else "",
        finite_after=matrix.names[seen[first + int(later[0])]] if len(later) else "",
    )


def born(signals: Signals, step: int) -> str:
    """Where the bad gradient of a step was born, as its snapshot tells; empty where it does not.

    Where all are bad it tells nothing unless the loss is known to be finite.
    """
    culprit, loss = culprit_of(signals, step), loss_at(signals, step)
    if culprit is None or culprit.what != "gradient" or not culprit.total:
        return ""
    return "" if culprit.everywhere and not math.isfinite(loss) else origin(culprit, loss)


def loss_at(signals: Signals, step: int) -> float:
    """The loss of a step; NaN where it is not known of all that went backward.

    Another rank's or micro-batch's may be NaN beside it, or one that the logger left out.
    """
    row = int(np.searchsorted(signals.step, step))
    there = row < len(signals) and signals.step_at(row) == step
    if not there or loss_is_filtered(signals) or one_of_several(signals):
        return math.nan
    return float(signals.loss[row]) if finite_on_all(signals, row) else math.nan
