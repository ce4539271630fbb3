"""What counts as a bad step: the ``--bad`` predicates, asked of logged and of replayed rows alike.

No torch is needed: a predicate is parsed before anything is loaded.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forensics.errors import UsageError
from forensics.runlog.schema import Kind, spec_of
from forensics.runlog.steps import BoolArray, StepTable

NONFINITE = "nonfinite"
_FORMS = "such as nonfinite, 'loss>10', 'grad_l2_pre_clip>100', skipped or 'scale<1'"
_SHORT = {"scale": "scaler_scale", "norm": "grad_l2_pre_clip"}
"""Short names of columns, as people say them."""
_WATCHED = (
    "loss",
    "grad_l2_pre_clip",
    "grad_l2_post_clip",
    "lr",
    "scaler_scale",
    "update_l2",
    "param_l2",
    "ema_l2_distance",
)
"""Columns that ``nonfinite`` looks at: what the training computes with, no clock or validation."""
_COMPARISON = re.compile(r"\s*([A-Za-z_][\w./ -]*?)\s*(>=|<=|==|!=|>|<|=)\s*(\S+)\s*\Z")
_NAME = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*\Z")
_OTHERWISE: Mapping[str, str] = {
    ">": "at most",
    ">=": "below",
    "<": "at least",
    "<=": "above",
    "==": "other than",
    "!=": "equal to",
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class BadPredicate:
    """A condition on one row of the step log.

    A cell that was not written is never bad. A NaN compares with nothing, so a limit (``>``,
    ``>=``, ``<``, ``<=``) that it cannot be held against counts as passed: who asks where the
    loss leaves ``loss>10`` is not served by a run that went to NaN below 10.

    Attributes:
        text: as it was asked for, spaces left out.
        column: of the step log; empty for ``nonfinite``, which looks at every number that the
            training computes with.
        comparison: one of ``>``, ``>=``, ``<``, ``<=``, ``==``, ``!=``; empty for ``nonfinite``
            and for a flag.
        value: what the column is compared with; ``nan`` and ``inf`` are values too.
    """

    text: str
    column: str = ""
    comparison: str = ""
    value: float = math.nan

    @property
    def otherwise(self) -> str:
        """What a row is where this does not hold, in words: ``finite``, ``loss at most 10``."""
        if not self.column:
            return "finite"
        if not self.comparison:
            return f"not {self.text}"
        name, _, number = self.text.partition(self.comparison)
        return f"{name} {_OTHERWISE[self.comparison]} {number}"

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Is this row bad? A cell that is None, or not there, was not written."""
        if not self.column:
            return any(_written(row.get(n)) and not math.isfinite(row[n]) for n in _columns(row))
        cell: Any = row.get(self.column)
        return _written(cell) and bool(self._judge(np.asarray([float(cell)]))[0])

    def rows(self, table: StepTable) -> BoolArray:
        """Which rows of a step log are bad, shape (rows,).

        Raises:
            UsageError: the log has no such column, or it holds texts.
        """
        if not self.column:
            bad = np.zeros(len(table), dtype=bool)
            for name in _columns(table):
                bad |= table.present(name) & ~np.isfinite(np.asarray(table[name], np.float64))
            return bad
        self.check(table)
        values = np.asarray(table[self.column], dtype=np.float64)
        return np.asarray(table.present(self.column) & self._judge(values), dtype=bool)

    def check(self, table: StepTable) -> None:
        """Refuse a column that the log does not have as numbers.

        Raises:
            UsageError: with the columns that it has.
        """
        if self.column and self.column not in table:
            numbers = [name for name in table if not table.columns[name].categories]
            raise UsageError(
                f"the log has no column {self.column!r}",
                where=f"--bad {self.text}",
                hint=f"its columns are {', '.join(numbers)}",
            )
        if self.column and table.columns[self.column].categories:
            raise UsageError(
                f"column {self.column!r} holds texts, which cannot be compared with a number",
                where=f"--bad {self.text}",
            )

    def _judge(self, values: Any) -> BoolArray:
        if not self.comparison:  # a flag
            return np.asarray(values != 0, dtype=bool)
        nan = np.isnan(values)
        if math.isnan(self.value):
            return np.asarray(nan if self.comparison == "==" else ~nan, dtype=bool)
        with np.errstate(invalid="ignore"):
            bad = _COMPARE[self.comparison](values, self.value)
        beyond = self.comparison not in ("==", "!=")
        return np.asarray(bad | nan if beyond else bad, dtype=bool)


def parse_bad(text: str | None) -> BadPredicate:
    """The predicate that a ``--bad`` asks for; without one, ``nonfinite``.

    Args:
        text: ``nonfinite``, the name of a flag (``skipped``, ``norm_overflow``,
            ``grads_scaled``), or COLUMN, a comparison and a number. ``scale`` and ``norm`` are
            short for ``scaler_scale`` and ``grad_l2_pre_clip``.

    Raises:
        UsageError: anything else.
    """
    if text is None or text.strip().lower() in (NONFINITE, "non-finite"):
        return BadPredicate(NONFINITE)
    compared = _COMPARISON.match(text)
    if compared:
        name, sign, number = compared.groups()
        sign = "==" if sign == "=" else sign
        column = _SHORT.get(name, name)
        value = _number(number, text)
        if math.isnan(value) and sign not in ("==", "!="):
            raise UsageError(
                "nothing is larger or smaller than NaN",
                where=f"--bad {text}",
                hint=f"write '{name}==nan'",
            )
        return BadPredicate(f"{name}{sign}{number}", column, sign, value)
    named = _NAME.match(text)
    if named is None:
        raise UsageError("is no condition on a row", where=f"--bad {text}", hint=f"write {_FORMS}")
    column = _SHORT.get(named.group(1), named.group(1))
    spec = spec_of(column)
    if spec is None or spec.kind is not Kind.FLAG:
        raise UsageError(
            "names no flag of the log, and a number needs something to be compared with",
            where=f"--bad {text}",
            hint=f"write {_FORMS}",
        )
    return BadPredicate(named.group(1), column)


def _number(text: str, whole: str) -> float:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        hint = "write a number, such as 10, 1e-3, inf or nan"
        raise UsageError(f"{text!r} is no number", where=f"--bad {whole}", hint=hint) from None


def _columns(names: Iterable[str]) -> list[str]:
    """The columns among these that ``nonfinite`` looks at."""
    return [name for name in names if name in _WATCHED or name.startswith("lr_")]


def _written(cell: Any) -> bool:
    return isinstance(cell, int | float)
