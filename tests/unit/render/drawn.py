"""What is in a figure, for tests that look at content and not at pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from forensics.render.figure_file import figure_bytes


def by_gid(figure: Figure, gid: str) -> list[Any]:
    """The artists that were given this name."""
    return figure.findobj(lambda artist: artist.get_gid() == gid)


def texts(figure: Figure) -> list[str]:
    """All that is written in it and visible."""
    found = figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_visible())
    return [artist.get_text() for artist in found if artist.get_text()]


def titles(figure: Figure) -> list[str]:
    """The titles of its panels, from the top."""
    return [t for axes in figure.axes if (t := axes.get_title(loc="left"))]


def legend_texts(figure: Figure) -> list[str]:
    """What all legends say."""
    legends = [axes.get_legend() for axes in figure.axes]
    return [text.get_text() for legend in legends if legend for text in legend.get_texts()]


def pixels(figure: Figure, width: int = 400) -> np.ndarray:
    """The picture as a grey thumbnail, shape (height, width), 0 to 255."""
    with Image.open(io.BytesIO(figure_bytes(figure, ".png"))) as image:
        height = round(image.height * width / image.width)
        grey = image.convert("L").resize((width, height), Image.Resampling.BOX)
    return np.asarray(grey)


def _boxes(figure: Figure) -> list[tuple[str, Any]]:
    """Every text that is drawn, and where."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    shown = figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_visible())
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in shown
        if text.get_text().strip() and _is_drawn(figure, text)
    ]


def cut_texts(figure: Figure) -> list[str]:
    """Texts that run out of the page by more than a pixel; those wholly outside are not drawn."""
    boxes, (wide, high) = _boxes(figure), figure.bbox.size
    return [
        text
        for text, box in boxes
        if (box.x0 < -1 or box.y0 < -1 or box.x1 > wide + 1 or box.y1 > high + 1)
        and (box.x1 > 0 and box.y1 > 0 and box.x0 < wide and box.y0 < high)
    ]


def overlapping_texts(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of which one lies on the other (more than a pixel)."""
    boxes = _boxes(figure)
    found = []
    for place, (text, box) in enumerate(boxes):
        for other, b in boxes[place + 1 :]:
            wide = min(box.x1, b.x1) - max(box.x0, b.x0)
            tall = min(box.y1, b.y1) - max(box.y0, b.y0)
            if wide > 1 and tall > 1:
                found.append((text, other))
    return found


def _is_drawn(figure: Figure, text: Text) -> bool:
    """Is it no tick label outside its axis, nor one that its panel hides?"""
    axes = text.axes
    if axes is None:  # of the figure itself, or of a tick that is no longer used
        return text in figure.texts
    x, y = text.get_unitless_position()
    ticks = {*axes.get_xticklabels(), *axes.get_yticklabels()}
    if text not in ticks:
        return True
    if text in {*axes.get_xticklabels()}:
        low, high = axes.get_xlim()
        return bool(low <= x <= high)
    low, high = sorted(axes.get_ylim())
    return bool(low <= y <= high)
