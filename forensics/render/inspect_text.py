"""Saved states as text: is each finite, what in it is not, and what a resume lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forensics.diagnose.state_health import StateHealth
from forensics.render.ansi import BAD, BOLD, GOOD
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


def render_inspect_text(
    states: Sequence[StateHealth],
    *,
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """All states, one after the other; their texts may be anything, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    if len(states) > 1:
        page.paragraph(summary(states), hang=2, code=BOLD)
    last_bad = {health.path.parent: i for i, health in enumerate(states) if not health.finite}
    before = None
    for i, health in enumerate(states):
        page.blank()
        _state(page, health, before)
        if last_bad.get(health.path.parent) == i:
            page.command("NEXT", next_command(health))
        before = health
    return page.text()


def summary(states: Sequence[StateHealth]) -> str:
    """How many of several states are sound, and which is the first that is not."""
    bad = [health for health in states if not health.finite]
    if not bad:
        return f"{len(states):,} states, all finite"
    first = f"the first is {bad[0].path.name}"
    return f"{len(states):,} states, {len(bad):,} of them not finite; {first}"


def _state(page: Page, health: StateHealth, before: StateHealth | None) -> None:
    """One state; what a resume lacks and the notes only where the state before has others."""
    page.paragraph(str(health.path), hang=2, code=BOLD)
    page.paragraph(facts(health), hang=2)
    page.blank()
    page.labelled("VERDICT", verdict(health), code=GOOD if health.finite else BAD)
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
    if before is None or missing(before) != missing(health):
        page.labelled("MISSING", f"for a resume: {missing(health)}")
    known = () if before is None else notes(before)
    for i, note in enumerate(note for note in notes(health) if note not in known):
        page.labelled("" if i else "NOTE", note)


def next_command(health: StateHealth) -> str:
    """Which state of the folder was the first bad one?"""
    import shlex

    folder = Path(health.path).parent
    return f"forensics bisect --ckpt-dir {shlex.quote(str(folder))}"
