"""Parameters × steps: how large each gradient was, where it was not finite, who moved first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.diagnose.param_map import ParamMap, param_map
from forensics.diagnose.series import runs_of
from forensics.diagnose.wording import counted, factor
from forensics.errors import InputError
from forensics.render import figure as look
from forensics.render.chart_heights import Heights
from forensics.render.plot_page import PlotPage, run_title
from forensics.runlog.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.17
"""Height of a parameter in inches where all of them fit with their names."""
_TALLEST = 7.5
_LEAST = 1.0
_SIDES = (2.75, 1.0)
_MOST_ROWS = 900
"""Rows that a page can tell apart at 200 dpi; of more parameters several share one."""
_LABEL = 0.15
"""Inches from one label to the next at least."""
_NAME = 38
_LOG = Heights(Axis(Layout.LOG))


def plot_params(run: Run) -> Figure:
    """The heat map of a run's gradient norms.

    Args:
        run: with per-parameter snapshots.

    Returns:
        A figure 10 inches wide, not known to pyplot.

    Raises:
        InputError: the run has no per-parameter snapshots, or none of a gradient.
    """
    return draw_params(param_map(run))


def draw_params(map_: ParamMap) -> Figure:
    """The heat map from its values; pure."""
    if not np.isfinite(map_.norms).any() and not map_.nonfinite.any():
        raise InputError("has no snapshot of a gradient to draw", where=map_.story.path)
    fold = math.ceil(len(map_.names) / _MOST_ROWS)
    starts = np.arange(0, len(map_.names), fold)
    rows = len(starts)
    with look.look():
        height = min(max(rows * _ROW, _LEAST), _TALLEST)
        page = PlotPage(run_title(map_.story.path), _lines(map_, fold), [height], sides=_SIDES)
        page.share_steps(int(map_.edges[0]), int(map_.edges[-1]), "step")
        axes = page.panels[0]
        image = _cells(axes, map_, np.fmax.reduceat(map_.norms, starts, axis=0))
        axes.set_xlim(map_.edges[0], map_.edges[-1])
        _nonfinite(axes, map_, np.logical_or.reduceat(map_.nonfinite, starts, axis=0))
        _marks(axes, map_, fold)
        _names(axes, map_, starts, height)
        if image is not None and (map_.norms > 0).any():
            _key(page.figure, axes, image)
        axes.set_title(
            "gradient norm (L2) of each parameter", loc="left", fontweight="bold", fontsize=9
        )
        handles, labels = axes.get_legend_handles_labels()
        if labels:
            axes.legend(
                handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3,
                frameon=False, borderaxespad=0.1, handletextpad=0.4, columnspacing=1.0,
            )  # fmt: skip
    return page.figure


def _lines(map_: ParamMap, fold: int) -> list[str]:
    """What the marks say, in words."""
    story = map_.story
    parameters = counted(len(map_.names), "parameter")
    lines = [f"{parameters} in network order, {counted(story.snapshots, 'snapshot')}"]
    if np.isnan(map_.norms[~map_.nonfinite]).any():
        lines[0] += "; white where no gradient was taken"
    if (map_.norms == 0).any():
        lines[0] += "; darkest where the gradient is 0"
    if fold > 1:
        lines[0] += f"; the largest of each {fold} neighbours is drawn"
    if story.movers:
        first = story.movers[0]
        grown = f"{factor(first.growth)} its own past at step {story.step:,}"
        lines.append(f"★ first to move: {first.name}, since step {first.since:,} ({grown})")
    if story.first_bad is not None:
        bad = story.first_bad
        lines.append(f"◆ first not finite: {bad.what} of {bad.name} at step {bad.step:,}")
    return lines


def _cells(axes: Axes, map_: ParamMap, norms: Any) -> Any:
    """The map; zeros get the lowest colour, what was not taken stays white."""
    import matplotlib

    heights = _LOG.of(norms)
    finite = heights[np.isfinite(heights)]
    axes.set_ylim(len(norms) - 0.5, -0.5)
    if len(finite) == 0 and not (norms == 0).any():
        return None
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    shown = np.where(norms == 0, low - 1, heights)
    colours = matplotlib.colormaps["cividis"].with_extremes(bad="white", under="#00112B")
    return axes.imshow(
        np.ma.masked_invalid(shown), cmap=colours, vmin=low, vmax=max(high, low + 1e-3),
        aspect="auto", interpolation="nearest", gid="norms",
        extent=(map_.edges[0], map_.edges[-1], len(norms) - 0.5, -0.5),
    )  # fmt: skip


def _nonfinite(axes: Axes, map_: ParamMap, bad: Any) -> None:
    """Stretches of a row that are NaN or Inf: no colour of the map, and crossed out."""
    named = False
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        first, last = runs_of(bad[row])
        begin, end = map_.edges[first], map_.edges[last + 1]
        bars = [*zip(begin.tolist(), (end - begin).tolist(), strict=True)]
        axes.broken_barh(
            bars, (row - 0.5, 1), facecolor=look.VERMILION, edgecolor="white", hatch="xxxx",
            lw=0.2, gid="nonfinite", label="_" if named else "not finite",
        )  # fmt: skip
        named = True


def _marks(axes: Axes, map_: ParamMap, fold: int) -> None:
    story = map_.story
    found = []
    if story.movers:
        found.append((story.movers[0].name, story.movers[0].since, "*", 14.0, "first to move"))
    if story.first_bad is not None:
        bad = story.first_bad
        found.append((bad.name, bad.step, "D", 7.0, "first not finite"))
    for name, step, shape, size, text in found:
        if name in map_.names:
            axes.plot(
                step, map_.names.index(name) // fold, ls="", marker=shape, ms=size,
                mfc="white", mec="black", mew=1.2, zorder=4, label=text, gid=text, clip_on=False,
            )  # fmt: skip


def _names(axes: Axes, map_: ParamMap, starts: Any, height: float) -> None:
    """Every name where there is room, else the first parameter's layer of each group."""
    rows = len(starts)
    if height / rows >= _LABEL:
        places, texts = [*range(rows)], [map_.names[i] for i in starts.tolist()]
    else:
        layers = [map_.layers[i] for i in starts.tolist()]
        places, texts = [], []
        room = _LABEL * rows / height
        for row, layer in enumerate(layers):
            new = row == 0 or layer != layers[row - 1]
            if new and (not places or row - places[-1] >= room):
                places.append(row)
                texts.append(layer)
    axes.set_yticks(places, [look.label(text, _NAME) for text in texts])
    axes.tick_params(axis="y", labelsize=7.5, length=2)
    moved = {m.name for m in map_.story.movers[:1]}
    for tick, text in zip(axes.get_yticklabels(), texts, strict=True):
        tick.set_fontweight("bold" if text in moved else "normal")


def _key(figure: Figure, axes: Axes, image: Any) -> None:
    box = axes.get_position()
    side = figure.add_axes((box.x1 + 0.015, box.y0, 0.012, box.height))
    bar = figure.colorbar(image, cax=side)
    low, high = image.get_clim()
    ticks = _LOG.ticks(low, high, max(2, min(8, int(box.height * figure.get_figheight() / 0.3))))
    bar.set_ticks([height for height, _ in ticks], labels=[text for _, text in ticks])
    bar.outline.set_visible(False)
