"""The catalogue of rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from forensics.diagnose.rule import threshold
from forensics.diagnose.rules import GROUPS, RULES
from forensics.render.rules_markdown import render_rule_markdown, render_rules_markdown

CATALOGUE = Path(__file__).parents[3] / "docs" / "rules.md"


def test_the_catalogue_in_the_docs_is_that_of_the_rules() -> None:
    told = render_rules_markdown(GROUPS)
    assert CATALOGUE.read_text() == told, (
        "renew it: forensics rules --format markdown --out docs/rules.md"
    )


def test_every_rule_has_its_place_and_its_thresholds() -> None:
    text = render_rules_markdown(GROUPS)
    places = [text.index(f"\n### {rule.id}\n") for rule in RULES]
    assert places == sorted(places)
    for rule in RULES:
        assert f"- [{rule.id}](#{rule.id}): " in text
        for name in rule.sources():
            assert f"| `{name}` | " in text


def test_signs_of_tables_and_emphasis_are_escaped() -> None:
    @dataclass(frozen=True)
    class Odd:
        share: str = threshold("a|b", "from *two* sources | or one")

    text = render_rule_markdown(replace(RULES[0], defaults=Odd()))
    assert "| `share` | `'a\\|b'` | from \\*two\\* sources \\| or one |" in text
