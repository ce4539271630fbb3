"""The rules as Markdown: the catalogue in ``docs/rules.md``, or one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from forensics.diagnose.parts import in_words
from forensics.diagnose.rule import SECTIONS, Rule
from forensics.render.safe_text import markdown

_INTRODUCTION = """\
# The rules

What `forensics report` can diagnose: {count} rules, in the order of a report. Each stands for
itself and is one file in `forensics/diagnose/rules/`; this page is made of their docstrings by
`forensics rules --format markdown --out docs/rules.md`, and a test holds it to them.

A rule is *skipped*, and says why, where the run lacks what it needs. Every threshold can be
changed in `pyproject.toml`, under `[tool.forensics.rules.RULE]`, or in `forensics.toml`, under
`[rules.RULE]`."""


def render_rules_markdown(groups: Mapping[str, Sequence[Rule]]) -> str:
    """A list of all rules by group, then each in full."""
    blocks = [_INTRODUCTION.format(count=sum(map(len, groups.values())))]
    for group, members in groups.items():
        blocks.append(f"**{_capital(group)}**")
        blocks.append("\n".join(f"- [{r.id}](#{r.id}): {markdown(r.summary)}" for r in members))
    for group, members in groups.items():
        blocks.append(f"## {_capital(group)}")
        blocks += [block for rule in members for block in _rule(rule, "###")]
    return "\n\n".join(blocks) + "\n"


def render_rule_markdown(rule: Rule) -> str:
    """One rule in full."""
    return "\n\n".join(_rule(rule, "##")) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rule(rule: Rule, heading: str) -> Iterator[str]:
    """Its docstring with the sections' titles in bold, what it needs, its thresholds."""
    yield f"{heading} {rule.id}"
    for block in rule.doc.split("\n\n"):
        lines = block.splitlines()
        title = f"**{lines.pop(0)}.** " if lines[0] in SECTIONS else ""
        yield title + markdown(" ".join(line.strip() for line in lines))
    needs = ", ".join(in_words(rule.needs, rule.parts)) or "nothing"
    yield f"**Needs.** {markdown(needs)}"
    if sources := rule.sources():
        rows = [
            f"| `{name}` | {_code(getattr(rule.defaults, name))} | {markdown(source)} |"
            for name, source in sources.items()
        ]
        yield "\n".join(("| threshold | default | where that comes from |", "|---|---|---|", *rows))


def _code(default: object) -> str:
    """A default as Python spells it; a bar would end the table's cell even within code."""
    return f"`{default!r}`".replace("|", "\\|")
