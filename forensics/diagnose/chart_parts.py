"""The parts of a chart: plain values, as the log has them, gathered into places."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.chart_axis import Axis
from forensics.diagnose.chart_grid import Grid, Span
from forensics.diagnose.finding import Finding, Severity
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray


class Mark(StrEnum):
    """What a mark stands for; ``ROUTINE``: an overflow that the loss scaler dealt with."""

    GROWTH = "growth"
    BACKOFF = "backoff"
    SKIP = "skip"
    NOT_POSITIVE = "not-positive"
    ROUTINE = "routine"


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """One column over the places of its chart.

    Attributes:
        name: of the column.
        label: for a person.
        step: first step of each place that the series has, shape (places,), ascending.
        low: lowest finite value of each place, shape (places,), NaN where there is none.
        high: highest finite value; equal to ``low`` where a place is one row.
        middle: median of the finite values.
        sparse: so few rows have it that it is drawn as points.
    """

    name: str
    label: str
    step: IntArray
    low: FloatArray
    high: FloatArray
    middle: FloatArray
    sparse: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Marks:
    """Events of one kind.

    Attributes:
        kind: what they are.
        label: for a person, such as ``nonfinite_grad``; any text (it may come from the log).
        step: step of the first event of each place that has one, shape (M,).
        count: how many there are in the place, shape (M,).
        value: what the series was or became there, shape (M,); NaN where that says nothing.
    """

    kind: Mark
    label: str
    step: IntArray
    count: IntArray
    value: FloatArray

    @property
    def total(self) -> int:
        """How many events there are."""
        return int(self.count.sum())


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A horizontal line that a series is held against."""

    label: str
    value: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Chart:
    """One panel.

    Attributes:
        name: ``loss``, ``norm``, ``lr``, ``scale`` or ``skips``.
        title: with the unit, if it has one.
        axis: how values are best laid out.
        series: at least one.
        nonfinite: where the first series is NaN or Inf, and no loss scaler explains it.
        marks: events.
        limits: horizontal lines.
    """

    name: str
    title: str
    axis: Axis
    series: tuple[Series, ...]
    nonfinite: tuple[Span, ...] = ()
    marks: tuple[Marks, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Band:
    """The episodes of one finding of the report.

    Attributes:
        number: its place in the report, from 1.
        rule: id of the rule.
        severity: of the worst episode.
        relation: ``root``, ``follows`` or empty.
        spans: first and last step of each episode.
        head: the worst episode, for its message, cause and remedy.
    """

    number: int
    rule: str
    severity: Severity
    relation: str
    spans: tuple[tuple[int, int], ...]
    head: Finding


@dataclass(frozen=True, eq=False, kw_only=True)
class ChartSeries:
    """All charts of one run, in the order of a page; they share their steps.

    Attributes:
        path: of the run.
        first_step: of the log; None where it has no rows.
        last_step: of the log.
        unit: what rows count, ``step`` or ``epoch``.
        rows: how many rows the log has.
        charts: those whose columns the log has.
        bands: the findings, in the order of the report.
    """

    path: str
    first_step: int | None
    last_step: int | None
    unit: str
    rows: int
    charts: tuple[Chart, ...]
    bands: tuple[Band, ...] = ()

    def chart(self, name: str) -> Chart | None:
        """The chart of that name, or None."""
        return next((chart for chart in self.charts if chart.name == name), None)


def series_of(grid: Grid, name: str, label: str, values: FloatArray, sparse: bool) -> Series:
    """A series of finite values, NaN where there is none; shape of values (rows,)."""
    low, high, middle = grid.low(values), grid.high(values), grid.middle(values)
    kept = np.isfinite(low) if sparse else np.ones(len(low), dtype=bool)
    return Series(
        name=name,
        label=label,
        step=grid.step[kept],
        low=low[kept],
        high=high[kept],
        middle=middle[kept],
        sparse=sparse,
    )


def marks_at(
    grid: Grid,
    kind: Mark,
    label: str,
    rows: IntArray,
    values: FloatArray | None = None,
    weight: NDArray[Any] | None = None,
) -> Marks:
    """The events at some rows by place; ``values`` and ``weight`` are as ``rows``."""
    first, count = grid.gathered(rows, weight)
    picked = np.full(len(first), np.nan) if values is None else values[first]
    return Marks(kind=kind, label=label, step=grid.rows[rows[first]], count=count, value=picked)
