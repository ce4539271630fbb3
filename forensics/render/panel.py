"""One panel of a figure: its series, what is non-finite, its limits; titles above, never in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.diagnose.chart_axis import Axis
from forensics.diagnose.chart_grid import Span
from forensics.diagnose.chart_parts import Chart, Limit, Mark, Series
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.render import figure as look
from forensics.render.chart_heights import Heights
from forensics.runlog.steps import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARGIN = 0.08
_SPIKE = 3.0
"""Usual widths of a band from its middle beyond which a place is drawn at full strength."""
_MOST_SPIKES = 200
"""Spikes that are; of more the band says as much."""
_HATCHED = 60
"""Stretches up to which each is hatched; more of them are too narrow for it."""
_WIDEST_LEGEND = 70
"""Characters of a legend beyond which its letters are smaller, to leave room for the title."""


@dataclass(frozen=True)
class Pen:
    """How a series is drawn; ``style`` is any line style of matplotlib's."""

    colour: str
    style: Any = "-"
    width: float = 1.3
    steps: bool = False
    order: float = 2.0


PENS = (
    Pen(look.BLUE),
    Pen(look.ORANGE, width=1.0),
    Pen(look.GREEN, "--", 1.0),
    Pen(look.PURPLE, "-.", 1.0),
    Pen(look.BLACK, ":", 1.2),
    Pen(look.SKY, (0, (5, 1, 1, 1)), 1.0),
)


def draw_chart(axes: Axes, chart: Chart, pens: Sequence[Pen] = PENS) -> Heights:
    """The whole chart: series, non-finite stretches, zeros, limits, ticks and legend."""
    heights = Heights(chart.axis)
    for series, pen in zip(chart.series, pens, strict=False):
        draw_series(axes, series, heights, pen)
    draw_nonfinite(axes, chart.nonfinite)
    fit(axes, heights, chart.series, chart.limits)
    for limit in chart.limits:
        draw_limit(axes, heights, limit)
    draw_zeros(axes, chart)
    draw_routine(axes, chart)
    return heights


def draw_series(axes: Axes, series: Series, heights: Heights, pen: Pen, name: str = "") -> None:
    """Low to high as a band where places hold many rows, the middle as a line over it."""
    low, high, middle = (heights.of(v) for v in (series.low, series.high, series.middle))
    text = look.label(name or series.label)
    if text != "_" and not np.isfinite(series.low).any():
        text += ": no finite value"  # else its legend would promise a line
    style: Any = {"color": pen.colour, "label": text, "gid": series.name, "zorder": pen.order}
    if series.sparse or len(series.step) == 1:
        axes.plot(series.step, middle, ls="", marker="o", ms=3.5, mfc="white", **style)
        axes.vlines(series.step, low, high, color=pen.colour, lw=0.8)
        return
    drawn = "steps-post" if pen.steps else "default"
    if not np.array_equal(low, high, equal_nan=True):
        axes.fill_between(
            series.step,
            low,
            high,
            color=pen.colour,
            alpha=0.35,
            lw=0.6,
            zorder=pen.order - 0.05,
            gid=f"{series.name}-band",
        )
        _draw_spikes(axes, series, (low, high, middle), pen)
    axes.plot(series.step, middle, ls=pen.style, lw=pen.width, drawstyle=drawn, **style)
    lone = _lone(middle)
    if len(lone):
        axes.plot(series.step[lone], middle[lone], ls="", marker=".", ms=4, color=pen.colour)


def _draw_spikes(
    axes: Axes, series: Series, heights: tuple[FloatArray, FloatArray, FloatArray], pen: Pen
) -> None:
    """Places that reach far beyond the band: a faint sliver of it would be overlooked."""
    low, high, middle = heights
    usual = float(np.nanmedian(high - low)) if np.isfinite(high).any() else 0.0
    there = np.isfinite(middle)
    for end in (low, high):
        far = np.flatnonzero(there & (np.abs(end - middle) > _SPIKE * usual) & (end != middle))
        if 0 < len(far) <= _MOST_SPIKES:
            axes.vlines(
                series.step[far], middle[far], end[far], color=pen.colour, lw=1.0,
                zorder=pen.order - 0.02, gid=f"{series.name}-spikes",
            )  # fmt: skip


def _lone(values: FloatArray) -> Any:
    """Points with nothing on either side, which a line does not show."""
    there = np.concatenate(([False], np.isfinite(values), [False]))
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])


def draw_nonfinite(axes: Axes, spans: Sequence[Span], whose: str = "") -> None:
    """Stretches without a finite value: hatched from edge to edge, and thick along the top.

    Each is at least as wide as a line, so that one step in a million is seen.
    """
    if not spans:
        return
    count = sum(span.count for span in spans)
    text = f"{whose}{_values(spans)}: {number(count)} {'row' if count == 1 else 'rows'}"
    first, last = [s.first_step - 0.5 for s in spans], [s.last_step + 0.5 for s in spans]
    bars = [(a, b - a) for a, b in zip(first, last, strict=True)]
    axes.broken_barh(
        bars, (0, 1), transform=axes.get_xaxis_transform(), facecolor="#F6C9B0",
        edgecolor=look.VERMILION, hatch="////" if len(spans) <= _HATCHED else None, lw=0.8,
        zorder=0.5, gid="nonfinite", label=text,
    )  # fmt: skip
    edge = axes.get_xaxis_transform()
    axes.hlines(
        np.ones(len(spans)), first, last, color=look.VERMILION, lw=4, transform=edge, clip_on=False
    )
    axes.plot(
        first, np.ones(len(spans)), ls="", marker="v", ms=5, color=look.VERMILION,
        transform=edge, clip_on=False,
    )  # fmt: skip


def _values(spans: Sequence[Span]) -> str:
    return "/".join(dict.fromkeys(number(span.value) for span in spans))


def draw_limit(axes: Axes, heights: Heights, limit: Limit) -> None:
    """A dashed line, where it lies within what is drawn."""
    height = float(heights.of(limit.value))
    low, high = axes.get_ylim()
    if low <= height <= high:
        text = f"{look.label(limit.label)} {number(limit.value)}"
        axes.axhline(height, color="black", ls="--", lw=0.9, zorder=2.5, label=text, gid="limit")


def draw_zeros(axes: Axes, chart: Chart) -> None:
    """Values that a logarithmic axis has no place for: triangles along its foot."""
    for marks in chart.marks:
        if marks.kind is not Mark.NOT_POSITIVE:
            continue
        lowest = float(np.nanmin(marks.value))
        text = f"{'0' if lowest == 0 else '≤ 0'}, {look.label(marks.label)}: {marks.total:,}"
        axes.plot(
            marks.step, np.zeros(len(marks.step)), ls="", marker="v", ms=4, mfc="white",
            mec="black", mew=0.8, transform=axes.get_xaxis_transform(), clip_on=False,
            label=text, gid=marks.kind.value,
        )  # fmt: skip


def draw_routine(axes: Axes, chart: Chart) -> None:
    """Overflows that a loss scaler dealt with: short ticks along the top, and no alarm."""
    for marks in chart.marks:
        if marks.kind is Mark.ROUTINE:
            axes.vlines(
                marks.step, 0.93, 1.0, color=look.GREY, lw=0.9,
                transform=axes.get_xaxis_transform(), gid=marks.kind.value,
                label=f"{look.label(marks.label)}: {marks.total:,}",
            )  # fmt: skip


def fit(axes: Axes, heights: Heights, series: Sequence[Series], limits: Sequence[Limit]) -> None:
    """Limits and ticks of the y axis: all values, and those horizontal lines that are near."""
    low, high = extent(heights, series)
    span = high - low
    for limit in limits:
        height = float(heights.of(limit.value))
        if low - span <= height <= high + span:
            low, high = min(low, height), max(high, height)
    room = _MARGIN * (high - low) if high > low else _room(heights.axis, low)
    axes.set_ylim(low - room, high + room)
    set_ticks(axes, heights)


def _room(axis: Axis, height: float) -> float:
    """Room around a single height."""
    return 0.5 if axis.positive else abs(height) * 0.1 or 1.0


def set_ticks(axes: Axes, heights: Heights) -> None:
    """Ticks where the numbers are round, whatever the layout."""
    low, high = axes.get_ylim()
    size = axes.get_position().height * axes.figure.get_figheight()  # type: ignore[union-attr]
    ticks = heights.ticks(low, high, max(2, min(8, round(size / 0.3))))
    axes.set_yticks([height for height, _ in ticks], [text for _, text in ticks])
    axes.grid(axis="y", color=look.PALE, lw=0.5)


def extent(heights: Heights, series: Sequence[Series]) -> tuple[float, float]:
    """Lowest and highest height; 0 and 1 where nothing is finite."""
    parts = [heights.of(values) for s in series for values in (s.low, s.high)]
    values = np.concatenate([part[np.isfinite(part)] for part in parts])
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def head(axes: Axes, title: str) -> None:
    """The title over the panel's left end, its legend over the right one."""
    axes.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=5)
    handles, labels = axes.get_legend_handles_labels()
    if labels == [title]:  # a single line, named by the title
        return
    if labels:
        axes.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(labels),
            frameon=False, borderaxespad=0.1, handlelength=1.8, columnspacing=1.2,
            handletextpad=0.5,
            fontsize=8 if sum(map(len, labels)) <= _WIDEST_LEGEND else 7,
        )  # fmt: skip


def say_nothing_finite(axes: Axes, series: Sequence[Series]) -> None:
    """A word in the middle of a panel that has nothing to draw."""
    if not any(np.isfinite(s.low).any() for s in series):
        axes.set_yticks([])
        axes.text(
            0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center",
            color="black", bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
        )  # fmt: skip
