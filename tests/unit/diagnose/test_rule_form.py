"""Every rule has the same form, so that each is found and understood from its name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import forensics.diagnose.rules as rules_package
from forensics.diagnose.rule import SECTIONS, Rule
from forensics.diagnose.rules import GROUPS, RULES

FOLDER = Path(rules_package.__path__[0])
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def test_every_file_is_listed_once_under_its_own_name() -> None:
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py")} - {"--init--"}
    assert sorted(rule.id for rule in RULES) == sorted(files)
    assert sum(map(len, GROUPS.values())) == len(RULES)


@each_rule
def test_the_id_is_kebab_case(rule: Rule) -> None:
    assert ID.match(rule.id)


@each_rule
def test_the_docstring_has_its_sections_in_order_each_with_text(rule: Rule) -> None:
    heads = [line for line in rule.doc.splitlines() if line in SECTIONS]
    assert tuple(heads) == SECTIONS
    parts = re.split(rf"^(?:{'|'.join(SECTIONS)})$", rule.doc, flags=re.MULTILINE)
    assert all(len(part.split()) >= 5 for part in parts)


@each_rule
def test_the_summary_is_one_short_line(rule: Rule) -> None:
    assert rule.summary == rule.summary.strip()
    assert 10 <= len(rule.summary) <= 97
    assert rule.doc.splitlines()[1] == ""


@each_rule
def test_thresholds_are_frozen_numbers_that_name_their_source(rule: Rule) -> None:
    assert rule.defaults.__dataclass_params__.frozen
    for field in dataclasses.fields(rule.defaults):
        assert isinstance(field.default, int | float)
        assert len(str(field.metadata.get("source", "")).split()) >= 3
