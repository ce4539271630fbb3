"""The rules as text: all of them by group, or one in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forensics.diagnose.parts import in_words
from forensics.diagnose.rule import SECTIONS, Rule
from forensics.render.ansi import BOLD
from forensics.render.page import Cell, Page

_INDENT = 4
ID_WIDTH = 26
"""Columns of the longest id and a little more."""


def render_rules_text(
    groups: Mapping[str, Sequence[Rule]],
    *,
    width: int = 80,
    colour: bool = False,
    ascii_only: bool = False,
) -> str:
    """Ids and summaries by group."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    for group, members in groups.items():
        page.blank()
        page.paragraph(group.upper(), code=BOLD)
        for rule in members:
            summary = Cell(rule.summary, page.width - 2 - ID_WIDTH - 2)
            page.row([Cell(rule.id, ID_WIDTH), summary], indent=2)
    page.blank()
    page.paragraph("`forensics rules RULE` explains one: what it needs, and its thresholds.")
    return page.text()


def render_rule_text(
    rule: Rule, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The rule's docstring, what it needs, and its thresholds."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    page.paragraph(rule.id, code=BOLD)
    page.blank()
    _document(page, rule.doc)
    _section(page, "Needs")
    page.paragraph(", ".join(in_words(rule.needs, rule.parts)) or "nothing", indent=_INDENT)
    sources = rule.sources()
    if not sources:
        return page.text()
    _section(page, "Thresholds")
    for name, source in sources.items():
        page.paragraph(f"{name} = {getattr(rule.defaults, name)!r}", indent=_INDENT)
        page.paragraph(source, indent=2 * _INDENT)
    _section(page, "To change one, in pyproject.toml (forensics.toml: without `tool.forensics.`)")
    page.paragraph(f"[tool.forensics.rules.{rule.id}]", indent=_INDENT)
    name = next(iter(sources))
    page.paragraph(f"{name} = {getattr(rule.defaults, name)!r}", indent=_INDENT)
    return page.text()


def _section(page: Page, title: str) -> None:
    page.blank()
    page.paragraph(title)


def _document(page: Page, doc: str) -> None:
    """A docstring's paragraphs, wrapped anew: they are written for an editor's width."""
    for block in doc.split("\n\n"):
        page.blank()
        lines = block.splitlines()
        if lines[0] in SECTIONS:
            page.paragraph(lines.pop(0))
        indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
        page.paragraph(" ".join(line.strip() for line in lines), indent=indent)
