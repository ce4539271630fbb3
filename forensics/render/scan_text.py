"""Many runs as text: a row each, worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forensics.diagnose.finding import Severity, Status
from forensics.diagnose.survey import SurveyRow, shown_path
from forensics.diagnose.wording import percent
from forensics.render.ansi import severity_code, status_code
from forensics.render.page import Page
from forensics.render.table import TextRow, put_table

HEADER = ("RUN", "severity", "root cause", "step", "wasted", "steps")


def render_scan_text(
    rows: Sequence[SurveyRow], *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The whole table; paths may hold anything, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    lines = [TextRow(cells(row), ("", _code(row), "", "", "", "")) for row in rows]
    put_table(page, HEADER, lines, indent=0, left=3)
    told = [row for row in rows if without_root(row)]
    if told:
        page.blank()
    for row in told:
        page.paragraph(f"{shown_path(row.path)}: {row.summary}", hang=2)
    page.blank()
    page.paragraph(tally(rows))
    sick = next((row for row in rows if row.sick or row.status == Status.UNDECIDED), None)
    if sick is not None:
        page.command("NEXT", f"forensics report {quoted(sick)}")
    return page.text()


def quoted(row: SurveyRow) -> str:
    """The path as a shell takes it."""
    import shlex

    return shlex.quote(shown_path(row.path))


def cells(row: SurveyRow) -> tuple[str, ...]:
    """Path, severity, root, step, wasted share and steps."""
    wasted = percent(row.wasted) if row.wasted >= 1e-3 else "<0.1 %" if row.wasted else "–"
    return (
        shown_path(row.path),
        word(row),
        row.root or ("undecided" if row.sick else "–"),
        "–" if row.step is None else f"{row.step:,}",
        wasted if row.readable else "–",
        f"{row.steps:,}" if row.readable else "–",
    )


def without_root(row: SurveyRow) -> bool:
    """Is it not healthy, and does no root cause say why? Then its summary does."""
    return not row.root and (not row.readable or row.sick or row.status == Status.UNDECIDED)


def word(row: SurveyRow) -> str:
    """The severity where something is wrong, else the verdict's word."""
    return row.severity.word if row.sick and row.severity is not None else row.status


def _code(row: SurveyRow) -> str:
    if not row.readable:
        return severity_code(Severity.WARNING)
    if row.sick and row.severity is not None:
        return severity_code(row.severity)
    return status_code(Status(row.status))


def tally(rows: Sequence[SurveyRow]) -> str:
    """``12 runs: 2 critical, 1 warning, 8 healthy, 1 unreadable``."""
    counts = Counter(word(row) for row in rows)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: {told}"
