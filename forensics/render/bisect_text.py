"""A bisection as text for a terminal or a pipe: the first bad step first, one next command."""

from __future__ import annotations

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.render.ansi import BAD, BOLD, DIM, GOOD
from forensics.render.bisection_phrases import (
    capsule,
    details,
    headline,
    names,
    note,
    outcome,
    replay,
    states,
    verdict,
)
from forensics.render.page import MARGIN, Cell, Page
from forensics.render.safe_text import display_width

MOST_BAD = 10
"""Saved states that are told one by one: bad and untestable ones."""
_LABEL = 8
_CHANGE = 26
"""Columns of a what-if's change at most."""


def render_bisect_text(
    result: BisectionResult, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The whole answer; its texts may be anything, they are made safe here.

    Args:
        result: what to tell.
        width: columns no line exceeds, except a word of a command that must stay whole.
        colour: paint with ANSI codes.
        ascii_only: spell out every sign that is not ASCII.

    Returns:
        Lines, each ended by a newline.
    """
    page = Page(width, colour=colour, ascii_only=ascii_only)
    _header(page, result)
    page.blank()
    located = result.status is BisectStatus.LOCATED
    if not located:
        code = GOOD if result.status is BisectStatus.HEALTHY else BOLD
        page.labelled("VERDICT", verdict(result), code=code)
        page.blank()
    if located or result.first_bad_step is not None or result.bad_tensors:
        _located(page, result)
    _what_if(page, result)
    _advice(page, result)
    return page.text()


def _header(page: Page, result: BisectionResult) -> None:
    """Where, which states, what the search went by, and how faithful the replay was."""
    page.paragraph(result.path, hang=2, code=BOLD)
    page.paragraph(states(result), hang=2)
    if result.status is BisectStatus.LOCATED and result.reason:
        page.paragraph(result.reason, hang=2)
    told = replay(result)
    if told:
        page.paragraph(told, hang=2)


def _located(page: Page, result: BisectionResult) -> None:
    """The answer, then the lines that prove it."""
    if result.first_bad_step is not None:
        _headline(page, f"FIRST BAD STEP  {headline(result)}")
    elif result.origin is None:
        _first_bad_state(page, result)
    for label, text in details(result):
        _line(page, label, text)
    if result.bad_tensors:
        _line(page, "bad", names(result.bad_tensors))
    if result.missing:
        _line(page, "missing", "; ".join(result.missing))
    if result.first_bad_step is None:
        _bad_states(page, result)


def _headline(page: Page, text: str) -> None:
    """On one line where it fits; a hanging paragraph gives its first line no more than the rest."""
    safe = page.safe(text)
    if display_width(safe) <= page.width:
        page.raw(page.paint(safe, BAD))
    else:
        page.paragraph(text, hang=16, code=BAD)


def _first_bad_state(page: Page, result: BisectionResult) -> None:
    """Where health alone was judged: the two states between which it happened."""
    bad = next((s for s in result.checkpoints if s.verdict == "bad"), None)
    if bad is None:
        return
    good = [s.step for s in result.checkpoints if s.verdict == "good" and s.step < bad.step]
    before = f"   last good one: step {good[-1]:,}" if good else "   no good one before it"
    page.paragraph(f"FIRST BAD STATE  step {bad.step:,}{before}", hang=17, code=BAD)


def _bad_states(page: Page, result: BisectionResult) -> None:
    told = [s for s in result.checkpoints if s.verdict in ("bad", "untestable")]
    for state in told[:MOST_BAD]:
        _line(page, "state", f"step {state.step:,} {state.verdict}: {state.reason}".rstrip(": "))
    if len(told) > MOST_BAD:
        _line(page, "", f"… and {len(told) - MOST_BAD:,} more")


def _line(page: Page, label: str, text: str) -> None:
    cells = [Cell(label, _LABEL, DIM), Cell(text, page.width - _LABEL - 4)]
    page.row(cells, indent=2)


def _what_if(page: Page, result: BisectionResult) -> None:
    if not result.what_if:
        return
    page.blank()
    widest = max(display_width(page.safe(trial.change)) for trial in result.what_if)
    change = min(widest, _CHANGE, (page.width - MARGIN) // 2)
    rest = page.width - MARGIN - change - 2
    for number, trial in enumerate(result.what_if):
        told = outcome(trial, result.first_bad_step)
        follows = f"   → {note(trial)}" if trial.note else ""
        code = "" if trial.finite is None else GOOD if trial.finite else BAD
        cells = [Cell(trial.change, change), Cell(told + follows, rest, code)]
        page.row(cells, label="" if number else "WHAT IF")


def _advice(page: Page, result: BisectionResult) -> None:
    page.blank()
    for number, text in enumerate(result.remedy):
        page.labelled("" if number else "DO", text)
    for number, text in enumerate(result.notes):
        page.labelled("" if number else "NOTE", text)
    if result.capsule:
        page.labelled("CAPSULE", capsule(result))
    if result.next_command:
        page.command("NEXT", result.next_command)
