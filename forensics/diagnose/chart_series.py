"""What charts of a run need: its columns gathered into few places, what is bad, what happened.

One plain value for every picture and page. Numbers are as the log has them; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from forensics.diagnose.chart_axis import RANGE, WIDE_RANGE, axis_of
from forensics.diagnose.chart_grid import Grid, sparse_in
from forensics.diagnose.chart_parts import (
    Band,
    Chart,
    ChartSeries,
    Limit,
    Mark,
    Marks,
    marks_at,
    series_of,
)
from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Diagnosis
from forensics.diagnose.report_order import report_order
from forensics.diagnose.scale_chart import scale_chart, skip_rate_chart
from forensics.diagnose.signals import Signals
from forensics.runlog.log_facts import PER_STEP
from forensics.runlog.run import Run
from forensics.runlog.schema import is_group_lr
from forensics.runlog.steps import FloatArray, IntArray

PLACES = 1200
"""Stretches by default: more than a page at 200 dpi can tell apart at a line's width."""
REACH = 500
"""Rows on either side of a finding's ends that a close-up keeps one by one."""
ROUTINE_LABEL = "scaler overflow"
MOST_GROUPS = 6
"""Learning rates of so many parameter groups are drawn; more lines cannot be told apart."""


def chart_series(
    run: Run, diagnosis: Diagnosis | None = None, *, places: int = PLACES, close_up: int = 0
) -> ChartSeries:
    """The charts of a run.

    Args:
        run: the run.
        diagnosis: of this run, for the bands; None for none.
        places: stretches of steps that all charts share, at most.
        close_up: rows around the findings, in all, that have a stretch of their own each besides:
            a zoom finds them as the log has them.
    """
    return charts_of(Signals(run), diagnosis, places=places, close_up=close_up)


def charts_of(
    signals: Signals,
    diagnosis: Diagnosis | None = None,
    *,
    places: int = PLACES,
    close_up: int = 0,
) -> ChartSeries:
    """As ``chart_series``, for whoever has the signals already."""
    facts = signals.table.facts
    rows = len(signals)
    grid = Grid.of(signals.step, places, rows_near(signals.step, diagnosis, close_up))
    with np.errstate(all="ignore"):  # a log may hold any number
        made = (_loss, _norm, _lr, scale_chart, skip_rate_chart) if rows else ()
        charts = [chart for make in made if (chart := make(signals, grid)) is not None]
    return ChartSeries(
        path=signals.run.named(),
        first_step=signals.step_at(0) if rows else None,
        last_step=signals.last_step if rows else None,
        unit=PER_STEP if facts is None else facts.unit,
        rows=rows,
        charts=tuple(charts),
        bands=() if diagnosis is None else tuple(_bands(diagnosis)),
    )


def _bands(diagnosis: Diagnosis) -> Iterator[Band]:
    for number, group in enumerate(report_order(diagnosis), start=1):
        yield Band(
            number=number,
            rule=group.head.rule,
            severity=group.head.severity,
            relation=group.relation,
            spans=tuple((f.first_step, f.last_step) for f in group.findings),
            head=group.head,
        )


def rows_near(step: IntArray, diagnosis: Diagnosis | None, most: int) -> IntArray | None:
    """The rows within ``REACH`` of each finding's ends, and all of a short one.

    Args:
        step: of each row, ascending, shape (rows,).
        diagnosis: whose findings are meant, in the order of the report: of each kind the worst
            episode comes first, then the others, as far as ``most`` goes.
        most: rows in all, at most.

    Returns:
        Rows, ascending; None where there is none.
    """
    if diagnosis is None or most <= 0 or len(step) == 0:
        return None
    groups = report_order(diagnosis)
    others = (f for group in groups for f in group.findings if f is not group.head)
    chosen = np.zeros(len(step), dtype=bool)
    for finding in (*(group.head for group in groups), *others):
        first = int(np.searchsorted(step, finding.first_step, side="left"))
        stop = int(np.searchsorted(step, finding.last_step, side="right"))
        short = stop - first <= 2 * REACH
        for a, b in ((first, stop),) if short else ((first, first), (stop, stop)):
            near = slice(max(a - REACH, 0), min(b + REACH, len(step)))
            new = near.stop - near.start - int(np.count_nonzero(chosen[near]))
            if new <= most:
                chosen[near] = True
                most -= new
    return np.flatnonzero(chosen)


# -- the charts ---------------------------------------------------------------------------------


def _loss(signals: Signals, grid: Grid) -> Chart | None:
    return _chart(signals, grid, "loss", "loss", {"loss": "loss", "val_loss": "validation loss"})


def _norm(signals: Signals, grid: Grid) -> Chart | None:
    clip = clip_of(signals)
    labels = {"grad_l2_pre_clip": "before the clip", "grad_l2_post_clip": "after the clip"}
    if not clip.known and signals.has("grad_l2_pre_clip"):
        labels = {"grad_l2_pre_clip": "gradient norm"}  # nothing clips, as far as the log tells
    limits = (Limit(label="clip threshold", value=clip.threshold),) if clip.constant else ()
    return _chart(signals, grid, "norm", "gradient norm (L2)", labels, limits, widest=WIDE_RANGE)


def _lr(signals: Signals, grid: Grid) -> Chart | None:
    groups = [name for name in signals.table if is_group_lr(name)]
    labels = {"lr": "group 0" if groups else "learning rate"}
    labels |= {name: f"group {name.removeprefix('lr_')}" for name in groups[: MOST_GROUPS - 1]}
    return _chart(signals, grid, "lr", "learning rate", labels, widest=np.inf)


def _chart(
    signals: Signals,
    grid: Grid,
    name: str,
    title: str,
    labels: Mapping[str, str],
    limits: tuple[Limit, ...] = (),
    *,
    widest: float = RANGE,
) -> Chart | None:
    """The chart of some columns, the first of which has its non-finite stretches marked."""
    there = {column: label for column, label in labels.items() if signals.has(column)}
    if not there:
        return None
    finite = {column: _finite(signals.column(column)) for column in there}
    axis = axis_of([*finite.values()], widest=widest)
    leader = next(iter(there))
    bad = signals.present(leader) & ~np.isfinite(signals.column(leader))
    series = []
    marks = []
    if leader == "grad_l2_pre_clip":
        # A scaler that overflows now and then is at work, not ill: a mark, and no alarm.
        routine = np.flatnonzero(bad & signals.scaling.routine)
        bad[routine] = False
        found = marks_at(grid, Mark.ROUTINE, ROUTINE_LABEL, routine)
        marks += [found] if found.total else []
    for column, label in there.items():
        values = finite[column]
        if axis.positive:
            low = np.flatnonzero(values <= 0)
            marks += _not_positive(grid, low, values, label)
            values = np.where(values > 0, values, np.nan)
        series.append(series_of(grid, column, label, values, sparse_in(signals.present(column))))
    return Chart(
        name=name,
        title=title,
        axis=axis,
        series=tuple(series),
        nonfinite=grid.spans(bad, signals.column(leader)),
        marks=tuple(marks),
        limits=limits,
    )


def _finite(values: FloatArray) -> FloatArray:
    return np.where(np.isfinite(values), values, np.nan)


def _not_positive(grid: Grid, rows: IntArray, values: FloatArray, label: str) -> list[Marks]:
    """The zeros of a series on a logarithmic axis, which has no place for them."""
    if len(rows) == 0:
        return []
    return [marks_at(grid, Mark.NOT_POSITIVE, label, rows, values[rows])]
