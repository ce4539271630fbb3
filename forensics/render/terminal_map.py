"""The map of the parameters drawn with characters."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.param_map import ParamMap
from forensics.diagnose.wording import number
from forensics.render.output import Look
from forensics.render.safe_text import display_width, plain_ascii, visible

_SHADES = " ░▒▓█"
_ASCII_SHADES = " .:+#"
_ROWS = 40
"""Parameters that are shown; of more, several share a line."""
_NAME = 30


def render_terminal_map(map_: ParamMap, look: Look) -> str:
    """A line a parameter, darker where the gradient is larger, ``!`` where it is not finite.

    Returns:
        Lines, each ended by a newline.
    """
    fold = -(-len(map_.names) // _ROWS)
    starts = np.arange(0, len(map_.names), fold)
    columns = np.linspace(0, map_.norms.shape[1], max(look.width - _NAME - 1, 10) + 1)
    edges = np.minimum(columns[:-1].astype(int), map_.norms.shape[1] - 1)
    norms = np.fmax.reduceat(np.fmax.reduceat(map_.norms, starts, axis=0), edges, axis=1)
    bad = np.logical_or.reduceat(map_.nonfinite, starts, axis=0)
    bad = np.logical_or.reduceat(bad, edges, axis=1)
    with np.errstate(all="ignore"):
        heights = np.where(norms > 0, np.log10(norms), np.nan)
    known = heights[np.isfinite(heights)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    shades = _ASCII_SHADES if look.ascii_only else _SHADES
    place = 1 + np.nan_to_num((heights - low) / max(high - low, 1e-9) * (len(shades) - 1.001))
    place = np.where(np.isfinite(heights), place, 0).astype(int)
    lines = []
    for row, start in enumerate(starts.tolist()):
        cells = "".join(
            "!" if b else shades[p] for p, b in zip(place[row].tolist(), bad[row], strict=True)
        )
        lines.append(f"{_named(map_.names[start], look)} {cells}")
    return "\n".join([*lines, *_legend(map_, fold, (low, high), shades)]) + "\n"


def _legend(map_: ParamMap, fold: int, span: tuple[float, float], shades: str) -> list[str]:
    low, high = (number(10.0**height) for height in span)
    told = [
        f"steps {map_.edges[0]:,.0f} to {map_.edges[-1]:,.0f}",
        f"gradient norm {shades[1]} {low} to {shades[-1]} {high}, ! not finite",
    ]
    told += [f"each line is {fold} parameters"] if fold > 1 else []
    return [f"{'':{_NAME}} {line}" for line in told]


def _named(name: str, look: Look) -> str:
    text = plain_ascii(visible(name)) if look.ascii_only else visible(name)
    if display_width(text) > _NAME:
        half = (_NAME - 1) // 2
        text = f"{text[:half]}{'~' if look.ascii_only else '…'}{text[-half:]}"
    return text + " " * max(_NAME - display_width(text), 0)
