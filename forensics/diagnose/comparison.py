"""Are two logs the same run? Where does each column part, and what else is not the same?"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from forensics.diagnose.run_changes import Change, changes, nonfinite
from forensics.diagnose.run_differences import Difference, differences
from forensics.diagnose.signals import Signals
from forensics.errors import InputError
from forensics.frozen import dataclass
from forensics.runlog.run import Run
from forensics.runlog.steps import BoolArray, Column, FloatArray, IntArray

CLOCKS = frozenset({"time_s", "tokens_per_s", "peak_memory_bytes"})
"""Columns that no two executions share."""
NOTICEABLE = 0.01
"""Relative difference from which two runs have really parted: rounding grows to it and past it."""
_TELLING = (
    ("lr", "the learning rate: another schedule"),
    ("scaler_scale", "the loss scale: another scaler state or policy"),
    ("skipped", "which steps are skipped"),
    ("param_digest", "the weights: another initialisation, or an update that rounds differently"),
    ("loss", "the loss: another batch, dropout mask or forward pass"),
    ("grad_l2_pre_clip", "the gradient alone: backward rounds or reduces differently"),
    ("grad_l2_post_clip", "the norm after the clip alone: another threshold or way of clipping"),
)
"""What it means that a column parts first, in the order of a step."""


class Likeness(StrEnum):
    """How alike two runs are."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within-tolerance"
    DIFFERENT = "different"


@dataclass(frozen=True, kw_only=True)
class ColumnComparison:
    """One column over the common steps.

    Attributes:
        name: of the column.
        first: first step at which the two differ at all, or None. NaN equals NaN, and an absent
            cell an absent one.
        beyond: first step at which they differ by more than the tolerance, or None.
        noticeable: first step at which they differ by more than 1 %, or None.
        largest: largest relative difference; Inf where one is not finite, or absent, or a text.
        a: run A's value at ``first``, as text.
        b: run B's.
    """

    name: str
    first: int | None
    beyond: int | None
    noticeable: int | None
    largest: float
    a: str = ""
    b: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        path_a: of run A.
        path_b: of run B.
        rtol: relative tolerance.
        likeness: the answer.
        reason: why, in a sentence.
        common: how many steps both have.
        first_step: the first of them.
        last_step: the last of them.
        only_a: steps within that range that only A has.
        only_b: steps within that range that only B has.
        longer_a: steps of A after the last common one.
        longer_b: steps of B after it.
        columns: those that both have, in A's order.
        one_sided: columns that only one of them has.
        differences: of config, code, data and machine.
        changes: of loss, norm and rates as a whole.
        bad_a: first step of A with a non-finite loss or an applied non-finite norm, or None.
        bad_b: the same of B.
    """

    path_a: str
    path_b: str
    rtol: float
    likeness: Likeness
    reason: str
    common: int
    first_step: int
    last_step: int
    only_a: int
    only_b: int
    longer_a: int
    longer_b: int
    columns: tuple[ColumnComparison, ...]
    one_sided: tuple[str, ...]
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    bad_a: int | None
    bad_b: int | None

    @property
    def alike(self) -> bool:
        """Is the one the other, within the tolerance?"""
        return self.likeness is not Likeness.DIFFERENT


def compare(a: Run, b: Run, *, rtol: float = 0.0) -> Comparison:
    """Compare two runs over the steps that both have.

    Args:
        a: run A.
        b: run B.
        rtol: relative difference up to which two numbers count as alike; 0 asks for the same
            bits.

    Raises:
        InputError: they have no step in common.
    """
    left, right = Signals(a), Signals(b)
    _, mine, theirs = np.intersect1d(left.step, right.step, assume_unique=True, return_indices=True)
    if len(mine) == 0:
        raise InputError(
            "has no step in common with the other run",
            where=b.named(),
            hint=f"{a.named()} has {_extent(left)}, {b.named()} {_extent(right)}",
        )
    rows = np.asarray(mine, dtype=np.int64), np.asarray(theirs, dtype=np.int64)
    step = left.step[rows[0]]
    names = [name for name in left.table if name in right.table and name not in CLOCKS | {"step"}]
    if not names:
        raise InputError("has no column in common with the other run but the step", where=b.named())
    with np.errstate(all="ignore"):
        columns = tuple(_column(left, right, name, rows, rtol) for name in names)
        whole = changes(left, right, rows)
    bad = _nonfinite_told(step, nonfinite(left)[rows[0]], nonfinite(right)[rows[1]])
    only_a, longer_a = _unshared(left.step, step)
    only_b, longer_b = _unshared(right.step, step)
    likeness = _likeness(columns, only_a + only_b)
    return Comparison(
        path_a=a.named(),
        path_b=b.named(),
        rtol=rtol,
        likeness=likeness,
        reason=bad + _reason(columns, likeness, only_a + only_b),
        common=len(step),
        first_step=int(step[0]),
        last_step=int(step[-1]),
        only_a=only_a,
        only_b=only_b,
        longer_a=longer_a,
        longer_b=longer_b,
        columns=columns,
        one_sided=tuple(sorted(({*left.table} ^ {*right.table}) - CLOCKS)),
        differences=differences(a.manifest, b.manifest),
        changes=() if likeness is Likeness.IDENTICAL else whole,
        bad_a=_first_bad(left),
        bad_b=_first_bad(right),
    )


def _extent(signals: Signals) -> str:
    if len(signals) == 0:
        return "no steps"
    return f"steps {signals.step_at(0):,} to {signals.last_step:,}"


def _unshared(own: IntArray, common: IntArray) -> tuple[int, int]:
    """Steps of one run within the common range that the other lacks, and those after it."""
    first, last = np.searchsorted(own, [common[0], common[-1]])
    inside, after = int(last - first) + 1 - len(common), len(own) - int(last) - 1
    return inside + int(first), after


def _column(
    a: Signals, b: Signals, name: str, rows: tuple[IntArray, IntArray], rtol: float
) -> ColumnComparison:
    left, right = a.table.columns[name].take(rows[0]), b.table.columns[name].take(rows[1])
    apart = _apart(left, right)
    step = a.step[rows[0]]
    row = _first(apart > 0)
    return ColumnComparison(
        name=name,
        first=None if row is None else int(step[row]),
        beyond=_step(step, apart > rtol),
        noticeable=_step(step, apart > NOTICEABLE),
        largest=float(apart.max(initial=0.0)),
        a="" if row is None else _shown(left, row),
        b="" if row is None else _shown(right, row),
    )


def _apart(a: Column, b: Column) -> FloatArray:
    """Relative difference a row, shape (rows,); Inf where the two cannot be compared as numbers."""
    if a.categories or b.categories:
        return np.where(_texts(a) == _texts(b), 0.0, np.inf)
    left, right = a.values.astype(np.float64), b.values.astype(np.float64)
    size = np.maximum(np.abs(left), np.abs(right))
    relative = np.abs(left - right) / np.where(size > 0, size, 1.0)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    unlike = np.isfinite(left) != np.isfinite(right)
    relative = np.where(unlike | ~np.isfinite(relative), np.inf, relative)
    relative = np.where(same, 0.0, relative)
    return np.where(a.present != b.present, np.inf, np.where(a.present, relative, 0.0))


def _texts(column: Column) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    if not column.categories:
        return np.array([str(value) for value in column.values.tolist()], dtype=object)
    return np.asarray(np.array(column.categories, dtype=object)[column.values])


def _first(mask: BoolArray) -> int | None:
    return int(np.argmax(mask)) if mask.any() else None


def _step(step: IntArray, mask: BoolArray) -> int | None:
    row = _first(mask)
    return None if row is None else int(step[row])


def _shown(column: Column, row: int) -> str:
    """The value with all its digits, or ``absent``."""
    if not column.present[row]:
        return "absent"
    return column.text_at(row) if column.categories else repr(column.values[row].item())


def _likeness(columns: tuple[ColumnComparison, ...], gaps: int) -> Likeness:
    if gaps or any(column.beyond is not None for column in columns):
        return Likeness.DIFFERENT
    if any(column.first is not None for column in columns):
        return Likeness.WITHIN_TOLERANCE
    return Likeness.IDENTICAL


def _reason(columns: tuple[ColumnComparison, ...], likeness: Likeness, gaps: int) -> str:
    """Which column parts first, and what that means."""
    if likeness is Likeness.IDENTICAL:
        return f"all {len(columns)} common columns are the same to the last bit"
    missing = f"{gaps:,} steps are in one of them only" if gaps else ""
    parted = [column for column in columns if column.beyond is not None]
    if not parted:
        rough = max(columns, key=lambda column: column.largest)
        largest = f"the largest difference is {rough.largest:.2g} of {rough.name}"
        return f"{missing}, though {largest}" if missing else f"{largest}, within the tolerance"
    start = min(column.beyond for column in parted if column.beyond is not None)
    first = {column.name for column in parted if column.beyond == start}
    meaning = [text for name, text in _TELLING if name in first]
    told = meaning[0] if meaning else sorted(first)[0]
    return f"they part at step {start:,}, first in {told}{f'; {missing}' if missing else ''}"


def _nonfinite_told(step: IntArray, a: BoolArray, b: BoolArray) -> str:
    """What heads the reason where one is non-finite and the other is not there; else nothing."""
    if bool((a == b).all()):
        return ""
    parts = [
        f"{name} is non-finite in {int(bad.sum()):,} of {len(step):,} steps, from "
        f"{int(step[np.argmax(bad)]):,} on"
        for name, bad in (("A", a), ("B", b))
        if bad.any()
    ]
    if len(parts) == 1:
        parts.append(f"{'B' if a.any() else 'A'} in none")
    return f"{', '.join(parts)}; "


def _first_bad(signals: Signals) -> int | None:
    bad = signals.loss_bad | (signals.norm_bad & ~signals.skipped)
    return _step(signals.step, bad)
