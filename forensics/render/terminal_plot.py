"""Charts drawn with characters, for a shell at the other end of a wire."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from forensics.diagnose.chart_parts import Chart, ChartSeries, Mark, Series
from forensics.diagnose.wording import counted, number
from forensics.diagnose.wording import span as span_of
from forensics.errors import MissingExtraError
from forensics.render.chart_heights import Heights
from forensics.render.output import Look
from forensics.render.safe_text import plain_ascii, visible
from forensics.runlog.steps import FloatArray

NEWEST = 5
"""Major version of plotext that this draws with."""
HEIGHT = 13
"""Lines a chart."""
_COLOURS = ("blue+", "orange+", "green+", "magenta+")
_MARKERS = ("braille", "+", "x", "o")
"""A sign for each line of a chart where no colour tells them apart."""
_TICKS = 4
_PLAIN_FRAME = str.maketrans("│─┌┐└┘├┤┬┴┼", "|-+++++++++")


def check_terminal_plots(verb: str) -> None:
    """Refuse before anything is read where the drawing library is not installed, or is another one.

    Version 6 draws through other names than all before it.

    Raises:
        MissingExtraError: it is not there, or too new.
    """
    if find_spec("plotext") is None:
        lacking = "which is not installed"
    else:
        from importlib.metadata import version

        there = version("plotext")
        if int(there.split(".", 1)[0]) <= NEWEST:
            return
        lacking = f"of which version {there} is installed"
    raise MissingExtraError(
        f"--show needs plotext {NEWEST}, {lacking}",
        where=f"forensics {verb}",
        hint=f"pip install 'plotext<{NEWEST + 1}'",
    )


def render_terminal(
    runs: Sequence[tuple[str, ChartSeries]], names: Sequence[str], look: Look
) -> str:
    """Some charts of one or more runs, one below the other.

    Args:
        runs: what each run is called (empty for a single one) and its series.
        names: of the charts, in order; those that no run has are left out.
        look: width, colour and signs.

    Returns:
        Lines, each ended by a newline.
    """
    parts = []
    for name in names:
        charts = [(whose, chart) for whose, s in runs if (chart := s.chart(name)) is not None]
        if charts:
            ends = [s.first_step for _, s in runs], [s.last_step for _, s in runs]
            steps = min(e or 0 for e in ends[0]), max(e or 0 for e in ends[1])
            parts.append(_drawn(charts, steps, runs[0][1].unit, look))
    return "\n".join(parts)


def _drawn(
    charts: Sequence[tuple[str, Chart]], steps: tuple[int, int], unit: str, look: Look
) -> str:
    import plotext

    plotext.clear_figure()
    plotext.theme("clear" if not look.colour else "default")
    plotext.plot_size(look.width, HEIGHT)
    heights = Heights(charts[0][1].axis)
    several = len(charts) > 1
    lines = [
        (whose, series)
        for whose, chart in charts
        for series in (chart.series[:1] if several else chart.series)
    ]
    values = [
        _plot(plotext, heights, s, whose, place, look, len(lines) > 1)
        for place, (whose, s) in enumerate(lines)
    ]
    _ticks(plotext, heights, np.concatenate(values), steps)
    _nonfinite(plotext, charts, np.concatenate(values), steps)
    plotext.title(_safe(charts[0][1].title, look))
    plotext.xlabel(unit)
    text = plotext.build()
    if not look.colour:
        text = plotext.uncolorize(text)
    if look.ascii_only:
        text = text.translate(_PLAIN_FRAME)
    notes = [note for whose, chart in charts for note in _notes(whose, chart)]
    return "\n".join([text.rstrip("\n"), *(_safe(note, look) for note in notes)]) + "\n"


def _plot(
    plotext: Any, heights: Heights, series: Series, whose: str, place: int, look: Look, named: bool
) -> FloatArray:
    """Low and high of each place in turn, so that no spike is lost; returns the heights."""
    step = np.repeat(series.step, 2)
    values = np.stack([heights.of(series.low), heights.of(series.high)], axis=1).ravel()
    there = np.isfinite(values)
    if there.any():
        draw = plotext.scatter if series.sparse else plotext.plot
        draw(
            step[there].tolist(),
            values[there].tolist(),
            label=_safe(whose or series.label, look) if named else None,
            marker=_marker(place, look),
            color=_COLOURS[place % len(_COLOURS)],
        )
    return values[there]


def _marker(place: int, look: Look) -> str:
    """What a line is drawn with: fine dots, or a sign of its own where colour does not name it."""
    sign = _MARKERS[0 if look.colour else place % len(_MARKERS)]
    return "." if look.ascii_only and sign == "braille" else sign


def _ticks(plotext: Any, heights: Heights, values: FloatArray, steps: tuple[int, int]) -> None:
    first, last = steps
    room = 0.5 if first == last else 0.0
    plotext.xlim(first - room, last + room)
    shown = np.unique(np.linspace(first, last, 5).round().astype(np.int64)).tolist()
    plotext.xticks(shown, [f"{step:,}" for step in shown])
    if len(values) == 0:
        return
    low, high = float(values.min()), float(values.max())
    ticks = heights.ticks(low, high, _TICKS) if high > low else []
    if not ticks:
        ticks = [(low, number(float(low)))] if not heights.axis.positive else []
    if ticks:
        plotext.yticks([height for height, _ in ticks], [text for _, text in ticks])


def _nonfinite(
    plotext: Any,
    charts: Sequence[tuple[str, Chart]],
    values: FloatArray,
    steps: tuple[int, int],
) -> None:
    """``!`` along the foot wherever a leading series is not finite."""
    places = max(steps[1] - steps[0], 1) / 60
    at: list[float] = []
    for _, chart in charts:
        for span in chart.nonfinite:
            count = 2 + int((span.last_step - span.first_step) / places)
            at += np.linspace(span.first_step, span.last_step, count).tolist()
    if at:
        low = float(values.min()) if len(values) else 0.0
        plotext.scatter(at, [low] * len(at), marker="!", color="red+")


def _notes(whose: str, chart: Chart) -> list[str]:
    """What characters cannot show: non-finite stretches and events, in words."""
    prefix = f"{whose}: " if whose else ""
    notes = []
    if chart.nonfinite:
        rows = counted(sum(span.count for span in chart.nonfinite), "row")
        where = span_of(chart.nonfinite[0].first_step, chart.nonfinite[-1].last_step)
        notes.append(f"  {prefix}{number(chart.nonfinite[0].value)} in {rows} (!), {where}")
    events = [f"{m.label} {m.total:,}" for m in chart.marks if m.kind is not Mark.NOT_POSITIVE]
    if events:
        notes.append(f"  {prefix}{' · '.join(events)}")
    return notes


def _safe(text: str, look: Look) -> str:
    return plain_ascii(visible(text)) if look.ascii_only else visible(text)
