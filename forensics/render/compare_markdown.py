"""Two runs side by side as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forensics.diagnose.comparison import Comparison
from forensics.render.compare_text import answer, cells, change_cells, extent, summary, titles
from forensics.render.safe_text import markdown


def render_compare_markdown(comparison: Comparison) -> str:
    """The answer, where they part, what changed, what differs; log texts are escaped."""
    blocks = [
        f"## {markdown(comparison.path_a)} and {markdown(comparison.path_b)}",
        f"**Answer:** {markdown(answer(comparison))}",
        markdown(extent(comparison)),
    ]
    parted = [column for column in comparison.columns if column.first is not None]
    if parted:
        rows = [(c.name, *cells(c, comparison), c.a, c.b) for c in parted]
        blocks.append(_table(("parts at step", *titles(comparison), "A", "B"), rows))
    if comparison.changes:
        whole = ("as a whole", "A", "B", "B against A", "by chance")
        blocks += [_table(whole, map(change_cells, comparison.changes)), summary(comparison)]
    if comparison.differences:
        rows_of = [(d.group, d.key, d.a, d.b) for d in comparison.differences]
        blocks.append(_table(("belongs to", "what", "A", "B"), rows_of))
    return "\n\n".join(blocks) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(markdown(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)
