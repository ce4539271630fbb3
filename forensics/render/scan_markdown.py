"""Many runs as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.diagnose.survey import SurveyRow
from forensics.render.safe_text import markdown
from forensics.render.scan_text import HEADER, cells, tally, without_root


def render_scan_markdown(rows: Sequence[SurveyRow]) -> str:
    """A table of the runs, worst first, and the verdict of each that is not healthy."""
    table = [f"| {' | '.join(HEADER)} |", "|---|---|---|---:|---:|---:|"]
    table += [f"| {' | '.join(markdown(cell) for cell in cells(row))} |" for row in rows]
    told = [
        f"- {markdown(row.path)}: {markdown(row.summary)}"
        for row in rows
        if row.root or without_root(row)
    ]
    return "\n\n".join(["\n".join(table), tally(rows), *(["\n".join(told)] if told else [])]) + "\n"
