"""Pure functions on snapshots: own baselines, like layers, weight matrices. No NaN blinds them.

Matrices have shape (S, P): S snapshots in ascending order of step, P names in network order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose import series
from forensics.frozen import dataclass
from forensics.runlog.manifest import ParameterInfo
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import BoolArray, IntArray

Floats = NDArray[np.float32]

MIN_PAST = 8
"""Snapshots a baseline is made of at least; fewer say nothing about the noise."""
LONGEST_NAME = 1_000
"""Characters of a name that is looked at for layers; no module is nested so deeply."""
_INTEGER = re.compile(r"(?<!\d)\d{1,9}(?=\.|$)")
_LAYER = re.compile(r"(?<!\d)\d{1,9}(?=\.)")
_VECTOR_WORDS = re.compile(
    r"bias|norm|(?<![a-z])(ln|bn|gn|rms)(?![a-z])|gamma|beta|(?<![a-z])scale", re.IGNORECASE
)


def usable(matrix: ParamMatrix) -> Floats:
    """The values as float32, NaN wherever there is no finite one; shape (S, P)."""
    values = np.asarray(matrix.values, dtype=np.float32)
    return np.where(matrix.present & np.isfinite(values), values, np.float32(np.nan))


def column_medians(values: Floats) -> Floats:
    """Median of the finite values of each column, shape (P,); NaN where there are none."""
    return row_medians(np.ascontiguousarray(values.T))


def row_medians(values: Floats) -> Floats:
    """Median of the finite values of each row, shape (S,); NaN where there are none."""
    return np.asarray(series.row_medians(values), dtype=np.float32)


def own_baselines(values: Floats, least: int = MIN_PAST) -> Floats:
    """What was normal for each parameter before each snapshot; shape (S, P).

    The median of the positive values in the first 8, 16, 32 … snapshots, whichever is the most
    that lies wholly before: at least half of the past, so that slow growth does not drag it
    along, and nothing that is appended later changes it. NaN in the first ``least`` snapshots,
    and where a parameter has fewer than half of ``least`` values to go by.
    """
    positive = np.where(values > 0, values, np.float32(np.nan))
    baselines = np.full(values.shape, np.nan, dtype=np.float32)
    known = least
    while known < len(values):
        enough = np.isfinite(positive[:known]).sum(axis=0) * 2 >= least
        level = np.where(enough, column_medians(positive[:known]), np.float32(np.nan))
        baselines[known : 2 * known] = level
        known *= 2
    return baselines


def squared_shares(values: Floats) -> Floats:
    """Each parameter's share of the squared global norm, shape (S, P); NaN where not finite."""
    largest = np.max(np.nan_to_num(values, nan=0.0), axis=1, initial=0.0)
    relative = values / np.where(largest > 0, largest, 1)[:, None]  # no square can overflow
    total = np.nansum(np.square(relative), axis=1)
    shares = np.square(relative) / np.where(total > 0, total, 1)[:, None]
    return np.asarray(shares, dtype=np.float32)


def longest_runs(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """First and last snapshot of the longest run of True in each column.

    Args:
        mask: shape (S, P).

    Returns:
        Two arrays of shape (P,); a column without any True has last = first − 1.
    """
    snapshots, columns = mask.shape
    best = np.zeros(columns, dtype=np.int64)
    end = np.zeros(columns, dtype=np.int64)
    length = np.zeros(columns, dtype=np.int64)
    for at in range(snapshots):
        length = np.where(mask[at], length + 1, 0)
        longer = length > best
        best = np.where(longer, length, best)
        end = np.where(longer, at, end)
    return end - best + 1, np.where(best > 0, end, end - best)


def too_few_snapshots(steps: IntArray, least: int, span: int = 0) -> str:
    """Why snapshots at these steps say too little to call a run clear; empty where they do not.

    Args:
        steps: steps of the snapshots that count, ascending, shape (W,).
        least: how many it takes.
        span: steps from the first to the last that it takes.
    """
    if len(steps) < least:
        return f"too few snapshots ({len(steps)} that count, {least} needed)"
    covered = int(steps[-1] - steps[0])
    short = covered < span
    return f"snapshots of {covered} steps only ({span} needed)" if short else ""


def earliest_start(steps: IntArray, at: int, *, in_update: bool = False) -> int | None:
    """The earliest step at which something may have begun that snapshot ``at`` is first to show.

    Args:
        steps: steps of the snapshots in which it could have been seen, ascending, shape (W,).
        at: index of the first one that shows it.
        in_update: it shows what updates wrote (weights, moments, EMA): a snapshot is taken before
            its step's own update, so that the update of the one before may be to blame.

    Returns:
        None where the snapshot before is of the step before, or there is none: nothing is open.
    """
    if at == 0 or steps[at] - steps[at - 1] <= 1:
        return None
    return int(steps[at - 1]) + (0 if in_update else 1)


def same_axes(first: ParamMatrix, second: ParamMatrix) -> bool:
    """Do two matrices have the same snapshots and the same names?"""
    return first.names == second.names and np.array_equal(first.steps, second.steps)


def is_matrix(name: str, info: Mapping[str, ParameterInfo]) -> bool:
    """Is this a weight matrix (or kernel), for which update ÷ weight means something?

    By its shape where run.json knows it, else by its name: biases and the weights of
    normalisation layers are none, whatever their shape.
    """
    known = info.get(name)
    if _VECTOR_WORDS.search(name):
        return False
    if known is not None and known.shape:
        return sum(size > 1 for size in known.shape) >= 2
    return name.rsplit(".", 1)[-1] in ("weight", "kernel", "in_proj_weight")


def matrix_mask(names: Sequence[str], info: Mapping[str, ParameterInfo]) -> BoolArray:
    """Which of the names are weight matrices; shape (P,)."""
    return np.fromiter((is_matrix(name, info) for name in names), dtype=bool, count=len(names))


def trainable_mask(names: Sequence[str], info: Mapping[str, ParameterInfo]) -> BoolArray:
    """Which of the names may be trained (all, where run.json does not say); shape (P,)."""
    return np.fromiter(
        (name not in info or info[name].requires_grad for name in names),
        dtype=bool,
        count=len(names),
    )


@dataclass(frozen=True)
class Family:
    """Like layers: names that differ in one number only, of one shape.

    Attributes:
        template: the name with that number as ``*``.
        columns: their columns in the matrix, by layer number.
        layers: those numbers, ascending.
    """

    template: str
    columns: IntArray
    layers: IntArray


def families(
    names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], least: int
) -> list[Family]:
    """All families of at least ``least`` like layers, in network order of their first member."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
    for column, name in enumerate(names):
        # Each number of a name makes a template as long as the name.
        for found in _INTEGER.finditer(name) if len(name) <= LONGEST_NAME else ():
            template = f"{name[: found.start()]}*{name[found.end() :]}"
            key = (template, shapes.get(name, ()))
            groups.setdefault(key, []).append((int(found.group()), column))
    return [
        Family(
            template,
            np.array([column for _, column in sorted(members)], dtype=np.int64),
            np.array([layer for layer, _ in sorted(members)], dtype=np.int64),
        )
        for (template, _), members in groups.items()
        if len(members) >= least
    ]


def layer_of(name: str) -> str:
    """The layer a name belongs to: up to its first number, else its first word."""
    found = _LAYER.search(name)
    return name[: found.end()] if found else name.split(".", 1)[0]
