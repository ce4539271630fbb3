"""``forensics rules``: what can be diagnosed, and how each diagnosis is made."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.output_options import look, output_options, put
from forensics.diagnose.rule import Rule
from forensics.diagnose.rules import GROUPS, RULES
from forensics.errors import UsageError
from forensics.render.output import choose_format
from forensics.settings import nearest


@click.command(short_help="List what can be diagnosed, or explain one rule.")
@click.argument("rule_id", metavar="[RULE]", required=False)
@output_options
def rules(rule_id: str | None, form: str | None, out: Path | None) -> None:
    """List what can be diagnosed, or explain one rule.

    With RULE: what it detects, why it matters, its evidence, when it stays silent, and each
    threshold with the source of its default. JSON and Markdown tell every rule in full.

    \b
    Examples:
      forensics rules
      forensics rules high-skip-rate
      forensics rules --format markdown --out rules.md
    """
    form = choose_format(form, out)
    if rule_id is None:
        put(_catalogue(form, out), out)
    else:
        put(_one(_named(rule_id), form, out), out)


def _named(rule_id: str) -> Rule:
    """The rule of an id; underscores and capitals are forgiven."""
    from forensics.diagnose.bisection import bisection

    wanted = rule_id.lower().replace("_", "-")
    for rule in (*RULES, bisection):
        if rule.id == wanted:
            return rule
    raise UsageError(f"no rule is called {rule_id!r}", hint=nearest(wanted, [r.id for r in RULES]))


def _catalogue(form: str, out: Path | None) -> str:
    if form == "json":
        from forensics.render.rules_json import render_rules_json

        return render_rules_json(GROUPS)
    if form == "markdown":
        from forensics.render.rules_markdown import render_rules_markdown

        return render_rules_markdown(GROUPS)
    from forensics.render.rules_text import render_rules_text

    return render_rules_text(GROUPS, **look(out))


def _one(rule: Rule, form: str, out: Path | None) -> str:
    if form == "json":
        from forensics.render.rules_json import render_rules_json

        group = next((name for name, members in GROUPS.items() if rule in members), "replay")
        return render_rules_json({group: (rule,)})
    if form == "markdown":
        from forensics.render.rules_markdown import render_rule_markdown

        return render_rule_markdown(rule)
    from forensics.render.rules_text import render_rule_text

    return render_rule_text(rule, **look(out))
