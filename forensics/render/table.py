"""A table on a page: the first column takes what width is left, numbers stand to the right."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.frozen import dataclass
from forensics.render.ansi import BOLD
from forensics.render.page import Page, wrap
from forensics.render.safe_text import display_width

GAP = 2
"""Columns between two columns."""
NARROWEST = 16
"""Columns that the first column keeps, however wide the others are."""


@dataclass(frozen=True)
class TextRow:
    """One row: the texts of its cells, and the colour of each ("" for none)."""

    cells: Sequence[str]
    codes: Sequence[str] = ()


def put_table(
    page: Page,
    header: Sequence[str],
    rows: Sequence[TextRow],
    *,
    indent: int = 2,
    left: int = 1,
) -> None:
    """Put a table on a page; cells may be anything, they are made safe.

    Args:
        page: where to.
        header: one title a column.
        rows: as many cells a row.
        indent: columns of the margin at the left.
        left: so many columns from the first on are aligned to the left.
    """
    safe = [[page.safe(cell) for cell in row.cells] for row in rows]
    titles = [page.safe(title) for title in header]
    widths = [max(display_width(line[i]) for line in [titles, *safe]) for i in range(len(titles))]
    fixed = sum(widths[1:]) + GAP * (len(widths) - 1)
    widths[0] = min(widths[0], max(NARROWEST, page.width - indent - fixed))
    _put(page, titles, widths, [BOLD] * len(titles), indent, left)
    for row, cells in zip(rows, safe, strict=True):
        _put(page, cells, widths, row.codes or [""] * len(cells), indent, left)


def _put(
    page: Page,
    cells: Sequence[str],
    widths: Sequence[int],
    codes: Sequence[str],
    indent: int,
    left: int,
) -> None:
    """One row; the first cell goes on below where it is too long."""
    first, *below = wrap(cells[0], widths[0])
    parts = [
        _padded(page, text, width, code, right=i >= left)
        for i, (text, width, code) in enumerate(
            zip([first, *cells[1:]], widths, codes, strict=True)
        )
    ]
    page.raw(" " * indent + (" " * GAP).join(parts))
    for line in below:
        page.raw(" " * (indent + GAP) + page.paint(line, codes[0]))


def _padded(page: Page, text: str, width: int, code: str, *, right: bool) -> str:
    blank = " " * (width - display_width(text))
    painted = page.paint(text, code)
    return blank + painted if right else painted + blank
