"""Saved states as text: is each finite, what in it is not, and what a resume lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forensics.diagnose.state_health import StateHealth
from forensics.render.ansi import BOLD
from forensics.render.inspect_phrases import (
    HEADER,
    MOST_BAD,
    bad_cells,
    facts,
    largest,
    missing,
    notes,
    numbers,
    verdict,
)
from forensics.render.page import Page
from forensics.render.table import TextRow, put_table

_RED, _GREEN = "1;31", "1;32"


def render_inspect_text(
    states: Sequence[StateHealth],
    *,
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """All states, one after the other; their texts may be anything, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    for health in states:
        page.blank()
        _state(page, health)
    return page.text()


def _state(page: Page, health: StateHealth) -> None:
    page.paragraph(str(health.path), hang=2, code=BOLD)
    page.paragraph(facts(health), hang=2)
    page.blank()
    page.labelled("VERDICT", verdict(health), code=_GREEN if health.finite else _RED)
    if health.bad:
        page.blank()
        rows = [TextRow(bad_cells(bad)) for bad in health.bad[:MOST_BAD]]
        put_table(page, HEADER, rows, left=2)
        if len(health.bad) > MOST_BAD:
            page.paragraph(f"… and {len(health.bad) - MOST_BAD:,} more", indent=2)
        page.blank()
    for i, (kind, value, name) in enumerate(largest(health)):
        page.labelled("" if i else "LARGEST", f"{value} in {name} ({kind})")
    if health.numbers:
        page.labelled("NUMBERS", numbers(health))
    page.labelled("MISSING", f"for a resume: {missing(health)}")
    for i, note in enumerate(notes(health)):
        page.labelled("" if i else "NOTE", note)
    if not health.finite:
        page.command("NEXT", next_command(health))


def next_command(health: StateHealth) -> str:
    """Which state of the folder was the first bad one?"""
    import shlex

    folder = Path(health.path).parent
    return f"forensics bisect --ckpt-dir {shlex.quote(str(folder))}"
