"""Two runs side by side as text: the same or not, where they part, what else differs."""

from __future__ import annotations

import math

from forensics.diagnose.comparison import ColumnComparison, Comparison, Likeness
from forensics.diagnose.run_changes import Change
from forensics.diagnose.wording import number, percent, steps
from forensics.render.ansi import BAD, BOLD, GOOD
from forensics.render.page import MARGIN, Page
from forensics.render.table import TextRow, put_table

MOST_DIFFERENCES = 24
"""Differences of config, code and machine that are shown; JSON has them all."""
MOST_OF_OTHERS = 8
"""The same for two trainings that are not the same recipe: nearly everything differs then."""
_CODES = {
    Likeness.IDENTICAL: GOOD,
    Likeness.WITHIN_TOLERANCE: GOOD,
    Likeness.DIFFERENT: BAD,
}
ANSWERS = {
    Likeness.IDENTICAL: "same",
    Likeness.WITHIN_TOLERANCE: "same within the tolerance",
    Likeness.DIFFERENT: "different",
}


def render_compare_text(
    comparison: Comparison, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The whole comparison; its texts may be anything, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    page.paragraph(f"A  {comparison.path_a}", hang=3, code=BOLD)
    page.paragraph(f"B  {comparison.path_b}", hang=3, code=BOLD)
    page.paragraph(extent(comparison), indent=3)
    page.blank()
    code = _CODES[comparison.likeness]
    page.labelled("ANSWER", answer(comparison), code=code)
    _columns(page, comparison)
    _changes(page, comparison)
    _differences(page, comparison)
    return page.text()


def answer(comparison: Comparison) -> str:
    """The answer and its reason in one sentence."""
    return f"{ANSWERS[comparison.likeness]}: {comparison.reason}."


def extent(comparison: Comparison) -> str:
    """Which steps are compared, and what one of the two has beyond them."""
    first, last = comparison.first_step, comparison.last_step
    parts = [f"{steps(comparison.common)} in common, {first:,} to {last:,}"]
    for name, inside, after, bad in (
        ("A", comparison.only_a, comparison.longer_a, comparison.bad_a),
        ("B", comparison.only_b, comparison.longer_b, comparison.bad_b),
    ):
        if inside:
            parts.append(f"{inside:,} in {name} only")
        if after:
            parts.append(f"{name} goes on for {after:,} more")
        if bad is not None:
            parts.append(f"{name} goes non-finite at {bad:,}")
    return " · ".join(parts)


def titles(comparison: Comparison) -> tuple[str, ...]:
    """Titles of what ``cells`` tells."""
    beyond = (f"beyond {number(comparison.rtol)}",) if comparison.rtol else ()
    return ("bits", *beyond, "1 %", "largest")


def cells(column: ColumnComparison, comparison: Comparison) -> tuple[str, ...]:
    """First step that differs, beyond the tolerance (if any), by 1 %; the largest difference."""
    beyond = (column.beyond,) if comparison.rtol else ()
    places = (column.first, *beyond, column.noticeable)
    told = ["–" if step is None else f"{step:,}" for step in places]
    return (*told, _largest(column.largest))


def _largest(relative: float) -> str:
    if relative == 0:
        return "–"
    return "n/a" if math.isinf(relative) else number(relative, 2)


def _columns(page: Page, comparison: Comparison) -> None:
    """Where each column parts; those that never do are named in one line."""
    parted = [column for column in comparison.columns if column.first is not None]
    same = [column.name for column in comparison.columns if column.first is None]
    page.blank()
    if parted:
        rows = [TextRow((column.name, *cells(column, comparison))) for column in parted]
        put_table(page, ("PARTS AT STEP", *titles(comparison)), rows)
        for column in parted:
            if column.first == min(c.first for c in parted if c.first is not None):
                a, b = _short(column.a, column.b)
                values = f"A {a}   B {b}"
                page.paragraph(f"{column.name} at {column.first:,}: {values}", indent=2, hang=4)
    if same:
        page.labelled("SAME", ", ".join(same))
    if comparison.one_sided:
        page.labelled("ONE ONLY", ", ".join(comparison.one_sided))


def _changes(page: Page, comparison: Comparison) -> None:
    """Loss, norm and rates as a whole."""
    if not comparison.changes:
        return
    page.blank()
    header = ("AS A WHOLE", "A", "B", "B against A", "by chance")
    put_table(page, header, [TextRow((*change_cells(change),)) for change in comparison.changes])
    page.labelled("", summary(comparison))


def change_cells(change: Change) -> tuple[str, ...]:
    """Name, both values, the difference and what chance makes of it."""
    if change.name.endswith("rate"):
        both = percent(change.a), percent(change.b)
        points = f"{signed(100 * change.difference)} points", f"±{signed(100 * change.noise)[1:]}"
        return (change.name, *both, *points)
    relative = f"{signed(100 * change.difference)} %", f"±{signed(100 * change.noise)[1:]}"
    return (change.name, number(change.a), number(change.b), *relative)


def signed(value: float) -> str:
    """A difference in per cent: ``+46``, ``-0.31``, ``+1,200``; never in powers of ten."""
    return f"{value:+,.0f}" if abs(value) >= 10 else f"{value:+.2g}"


def _short(a: str, b: str) -> tuple[str, str]:
    """Two values as a person reads them, unless they look the same so."""
    try:
        short = number(float(a), 4), number(float(b), 4)
    except ValueError:
        return a, b
    return (a, b) if short[0] == short[1] else short


def summary(comparison: Comparison) -> str:
    """Which of them changed, in a sentence."""
    changed = [change.name for change in comparison.changes if change.changed]
    if not changed:
        return "Nothing of this is more than another seed would make of it."
    rest = [change.name for change in comparison.changes if not change.changed]
    unchanged = f"; {', '.join(rest)} did not" if rest else ""
    told = f"Changed by more than chance: {', '.join(changed)}{unchanged}."
    if "non-finite rate" in (change.name for change in comparison.changes):
        told += " Loss and norm are compared where both runs are finite."
    return told


def _differences(page: Page, comparison: Comparison) -> None:
    """Config, code, data and machine, a line each."""
    if not comparison.differences:
        return
    page.blank()
    group = ""
    others = any(difference.key == "recipe.name" for difference in comparison.differences)
    most = MOST_OF_OTHERS if others else MOST_DIFFERENCES
    for difference in comparison.differences[:most]:
        label = difference.group.upper() if difference.group != group else ""
        group = difference.group
        a, b = difference.a or "not there", difference.b or "not there"
        page.labelled(label[: MARGIN - 1], f"{difference.key}: A {a}   B {b}")
    more = len(comparison.differences) - most
    if more > 0:
        page.labelled("", f"… and {more} more differences (--format json has them all)")
