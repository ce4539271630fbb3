"""The report as text for a terminal or a pipe: verdict first, one next command."""

from __future__ import annotations

from collections.abc import Iterable

from forensics.diagnose.finding import Diagnosis, Outcome, Severity, Status
from forensics.diagnose.report_order import FOLLOWS, ROOT, FindingGroup, report_order
from forensics.render.ansi import BOLD, DIM, severity_code, status_code
from forensics.render.page import MARGIN, Cell, Page
from forensics.render.phrases import (
    MOST_REMEDIES,
    facts_line,
    lost,
    message,
    place,
    points,
    reasons,
    remedies,
    span,
    tally,
)
from forensics.render.safe_text import display_width
from forensics.render.sparkline import put_sparklines

MOST_ROWS = 12
"""Rows of findings that are shown unasked; more are counted, and JSON has them all."""
_SEVERITY_WIDTH = 8
_RULE_WIDTH = 25
_SPAN_WIDTH = 18
_LEAST_CELL = 12
"""Columns a cell keeps; on a page too narrow for that (below 60) it stands on lines of its own."""


def render_text(
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
    verbose: bool = False,
    settings: str = "",
) -> str:
    """The whole report.

    Args:
        diagnosis: what to tell; its texts may be anything, they are made safe here.
        width: columns no line exceeds, except a word of a command that must stay whole.
        colour: paint with ANSI codes.
        ascii_only: spell out every sign that is not ASCII.
        verbose: every finding in full, and the outcome of every rule.
        settings: the file that changed rules or thresholds, if any: the reader must know.

    Returns:
        Lines, each ended by a newline.
    """
    page = Page(width, colour=colour, ascii_only=ascii_only)
    _header(page, diagnosis)
    if diagnosis.verdict.status is Status.HEALTHY and not verbose:
        _healthy(page, diagnosis, settings)
        return page.text()
    page.blank()
    _verdict(page, diagnosis)
    _findings(page, diagnosis, verbose)
    _advice(page, diagnosis, verbose)
    page.blank()
    if verbose:
        _rules(page, diagnosis)
    page.paragraph(tally(diagnosis, verbose=verbose, settings=settings))
    return page.text()


def _header(page: Page, diagnosis: Diagnosis) -> None:
    """Path and facts, on one line where they fit."""
    run = diagnosis.run
    facts = facts_line(run)
    path = page.safe(place(run))
    if display_width(path) + 3 + display_width(page.safe(facts)) <= page.width:
        page.raw(f"{page.paint(path, BOLD)}   {page.safe(facts)}")
    else:
        page.paragraph(path, hang=2, code=BOLD)
        page.paragraph(facts, indent=2)
    for text in (*run.superseded, *lost(run)):
        page.paragraph(text, indent=2)


def _healthy(page: Page, diagnosis: Diagnosis, settings: str) -> None:
    """Three short lines: nothing is wrong."""
    verdict = diagnosis.verdict
    page.labelled("VERDICT", verdict.summary, code=status_code(verdict.status))
    for text in verdict.undecided:
        page.labelled("OPEN", text)
    if verdict.next_command:
        page.command("NEXT", verdict.next_command)
    notes = list(dict.fromkeys(finding.rule for finding in diagnosis.findings))
    told = f" · notes: {', '.join(notes)} (--verbose)" if notes else ""
    page.paragraph(tally(diagnosis, verbose=False, terse=True, settings=settings) + told)


def _verdict(page: Page, diagnosis: Diagnosis) -> None:
    """The answer, then the chain of events."""
    verdict = diagnosis.verdict
    page.labelled("VERDICT", verdict.summary, code=status_code(verdict.status))
    page.blank()
    if verdict.timeline:
        when = max(display_width(page.safe(entry.when)) for entry in verdict.timeline)
        title = max(display_width(page.safe(entry.title)) for entry in verdict.timeline)
        when, title = min(when, 16), min(title, 26)
        detail = page.width - when - title - 6
        for entry in verdict.timeline:
            said = "" if _says(verdict.summary, entry.detail) else entry.detail
            cells = [Cell(entry.when, when), Cell(entry.title, title)]
            if detail >= _LEAST_CELL:
                page.row([*cells, Cell(said, detail)], indent=2)
                continue
            page.row(cells, indent=2)
            if said:
                page.paragraph(said, indent=4 + when)
        page.blank()


def _says(summary: str, detail: str) -> bool:
    """Has the summary, two lines above, told this already?"""
    return detail.rstrip(".").casefold() in summary.casefold()


def _findings(page: Page, diagnosis: Diagnosis, verbose: bool) -> None:
    """One row a finding; what the timeline told already is not told again."""
    if not diagnosis.findings:
        return
    verdict = diagnosis.verdict
    told = {*(entry.detail for entry in verdict.timeline), _as_message(verdict.summary)}
    drawn: set[str] = set()
    rows = report_order(diagnosis, apart=verbose)
    shown = rows if verbose else rows[:MOST_ROWS]
    for number, row in enumerate(shown):
        label = "FINDINGS" if number == 0 else ""
        finding = row.head
        severity = Cell(finding.severity.word, _SEVERITY_WIDTH, severity_code(finding.severity))
        where = span(finding, diagnosis.run)
        place = _place(page.width, where, row.relation)
        if place:
            page.row([severity, Cell(finding.rule, _RULE_WIDTH), *place], label=label)
        else:
            indent = MARGIN + _SEVERITY_WIDTH + 2
            page.row([severity, Cell(finding.rule, page.width - indent)], label=label)
            page.paragraph(f"{where}  {row.relation}", indent=indent)
        _detail(page, row, told=told, drawn=drawn, verbose=verbose)
    if len(rows) > len(shown):
        page.labelled("", _folded(rows[len(shown) :]))
    page.blank()


def _place(width: int, where: str, relation: str) -> list[Cell]:
    """Span and relation in the columns that are left: side by side, in one, or none at all."""
    left = width - MARGIN - 4 - _SEVERITY_WIDTH - _RULE_WIDTH
    if left < _LEAST_CELL:
        return []
    if left - 2 - _SPAN_WIDTH >= len(FOLLOWS):
        return [Cell(where, _SPAN_WIDTH), Cell(relation, left - 2 - _SPAN_WIDTH)]
    return [Cell(f"{where}  {relation}", left)]


def _others(row: FindingGroup) -> str:
    """The other findings of a row: episodes, or what else is so in the very same steps."""
    if len({(f.first_step, f.last_step) for f in row.findings}) == 1:
        others = [message(f) for f in row.findings if f is not row.head]
        more = f"; and {len(others) - 1:,} more like it" if len(others) > 1 else ""
        return f"in the same steps {others[0]}{more}"
    last = max(f.first_step for f in row.findings)
    return f"{len(row.findings):,} episodes, the last from {last:,} on"


def _detail(
    page: Page, row: FindingGroup, *, told: set[str], drawn: set[str], verbose: bool
) -> None:
    """What stands below a finding's row: message, sparklines, points, and in full its advice."""
    finding, indent = row.head, MARGIN + _SEVERITY_WIDTH + 2
    if verbose or finding.message not in told:
        page.paragraph(message(finding), indent=indent)
    if len(row.findings) > 1:
        page.paragraph(_others(row), indent=indent)
    if verbose or (row.relation != FOLLOWS and finding.severity > Severity.INFO):
        put_sparklines(page, finding, indent=indent, told=drawn)
        for evidence in finding.evidence:
            text = f"{evidence.signal}: {points(evidence, None) if verbose else points(evidence)}"
            page.paragraph(text, indent=indent, hang=indent + 2, code=DIM)
    if verbose and row.relation != ROOT:  # the root's stand below, under CAUSE and DO
        for label, text in (("cause", finding.cause), ("do", finding.remedy)):
            if text:
                page.paragraph(f"{label}: {text}", indent=indent, hang=indent + 2)


def _as_message(summary: str) -> str:
    """A verdict's sentence as a finding's message would say it."""
    return f"{summary[:1].lower()}{summary[1:]}".rstrip(".")


def _folded(rows: Iterable[FindingGroup]) -> str:
    """``… and 14 more (3 warning, 11 info): --verbose shows them``."""
    rows = list(rows)
    counts = {s.word: sum(row.head.severity is s for row in rows) for s in reversed(Severity)}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"… and {len(rows)} more ({told}): --verbose shows them"


def _advice(page: Page, diagnosis: Diagnosis, verbose: bool) -> None:
    """Cause, what to do, what stays open, and the next command."""
    verdict = diagnosis.verdict
    cause = verdict.cause if verdict.root is None else diagnosis.findings[verdict.root].cause
    if cause:
        page.labelled("CAUSE", cause)
    for number, text in enumerate(verdict.undecided):
        page.labelled("" if number else "OPEN", text)
    if verdict.remedy:
        page.labelled("DO", verdict.remedy)
    advice = remedies(diagnosis)
    shown = advice if verbose else advice[:MOST_REMEDIES]
    for number, (finding, remedy) in enumerate(shown):
        about = f"{finding.rule}: " if number else ""
        page.labelled("" if number else "DO", about + remedy)
    if len(advice) > len(shown):
        page.labelled("", f"… and advice on {len(advice) - len(shown)} more: --verbose")
    if verdict.next_command:
        page.command("NEXT", verdict.next_command)


def _rules(page: Page, diagnosis: Diagnosis) -> None:
    """What became of every rule that did not fire, and every repair."""
    by_outcome = {o: [r for r in diagnosis.rules if r.outcome is o] for o in Outcome}
    if by_outcome[Outcome.CLEAR]:
        page.labelled("CLEAR", ", ".join(rule.rule for rule in by_outcome[Outcome.CLEAR]))
    skipped = reasons(by_outcome[Outcome.SKIPPED])
    for number, (reason, names) in enumerate(skipped.items()):
        page.labelled("" if number else "SKIPPED", f"{reason}: {', '.join(names)}")
    for number, text in enumerate(diagnosis.run.repairs):
        page.labelled("" if number else "REPAIRS", text)
    page.blank()
