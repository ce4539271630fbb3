"""``forensics rules``: what can be diagnosed, and how each diagnosis is made."""

from __future__ import annotations

import sys

import click

from forensics.cli.streams import write_stdout
from forensics.diagnose.parts import in_words
from forensics.diagnose.rule import SECTIONS, Rule
from forensics.diagnose.rules import GROUPS, RULES
from forensics.errors import UsageError
from forensics.render.ansi import BOLD
from forensics.render.output import look_of
from forensics.render.page import Cell, Page
from forensics.settings import nearest

_INDENT = 4
_ID_WIDTH = 26
"""Columns of the longest id and a little more."""


@click.command(short_help="List what can be diagnosed, or explain one rule.")
@click.argument("rule_id", metavar="[RULE]", required=False)
def rules(rule_id: str | None) -> None:
    """List what can be diagnosed, or explain one rule.

    With RULE: what it detects, why it matters, its evidence, when it stays silent, and each
    threshold with the source of its default.

    \b
    Examples:
      forensics rules
      forensics rules high-skip-rate
    """
    look = look_of(sys.stdout)
    page = Page(look.width, colour=look.colour, ascii_only=look.ascii_only)
    if rule_id is None:
        _list(page)
    else:
        _explain(page, _named(rule_id))
    write_stdout(page.text())


def _named(rule_id: str) -> Rule:
    """The rule of an id; underscores and capitals are forgiven."""
    wanted = rule_id.lower().replace("_", "-")
    for rule in RULES:
        if rule.id == wanted:
            return rule
    raise UsageError(f"no rule is called {rule_id!r}", hint=nearest(wanted, [r.id for r in RULES]))


def _list(page: Page) -> None:
    """Ids and summaries by group."""
    for group, members in GROUPS.items():
        page.blank()
        page.paragraph(group.upper(), code=BOLD)
        for rule in members:
            width = page.width - 2 - _ID_WIDTH - 2
            page.row([Cell(rule.id, _ID_WIDTH), Cell(rule.summary, width)], indent=2)
    page.blank()
    page.paragraph("`forensics rules RULE` explains one: what it needs, and its thresholds.")


def _explain(page: Page, rule: Rule) -> None:
    """The rule's docstring, what it needs, and its thresholds."""
    page.paragraph(rule.id, code=BOLD)
    page.blank()
    _document(page, rule.doc)
    _section(page, "Needs")
    page.paragraph(", ".join(in_words(rule.needs, rule.parts)) or "nothing", indent=_INDENT)
    sources = rule.sources()
    if not sources:
        return
    _section(page, "Thresholds")
    for name, source in sources.items():
        page.paragraph(f"{name} = {getattr(rule.defaults, name)!r}", indent=_INDENT)
        page.paragraph(source, indent=2 * _INDENT)
    _section(page, "To change one, in pyproject.toml (forensics.toml: without `tool.forensics.`)")
    page.paragraph(f"[tool.forensics.rules.{rule.id}]", indent=_INDENT)
    name = next(iter(sources))
    page.paragraph(f"{name} = {getattr(rule.defaults, name)!r}", indent=_INDENT)


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
