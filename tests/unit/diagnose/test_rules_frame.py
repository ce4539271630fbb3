"""The frame that every rule keeps to, so that one is found, read and tested like another."""

from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

import forensics.diagnose.rules as package
from forensics.diagnose.finding import Finding
from forensics.diagnose.rule import SECTIONS, Rule
from forensics.diagnose.rules import RULES
from tests.unit.diagnose import rules as tests_of_rules

FOLDER = Path(package.__file__).parent
TESTS = Path(tests_of_rules.__file__).parent

every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)


def module_name(rule: Rule) -> str:
    return rule.id.replace("-", "_")


def test_every_file_is_a_rule_in_the_list_and_the_other_way_round() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files == {module_name(rule) for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


@every_rule
def test_a_rule_is_the_function_of_its_name_in_the_file_of_its_name(rule: Rule) -> None:
    module = import_module(f"forensics.diagnose.rules.{module_name(rule)}")
    assert getattr(module, module_name(rule)) is rule
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.id)


@every_rule
def test_the_docstring_has_a_sentence_and_the_four_sections_in_order(rule: Rule) -> None:
    first, blank, *rest = rule.doc.splitlines()
    assert first.endswith(".")
    assert blank == ""
    heads = [line for line in rest if line and not line.startswith(" ")]
    assert heads == list(SECTIONS)
    for head, after in pairwise(rest):
        if head in SECTIONS:
            assert after.startswith("    "), f"{head} is empty"


@every_rule
def test_every_threshold_is_a_number_that_names_its_source(rule: Rule) -> None:
    assert is_dataclass(rule.defaults)
    assert fields(rule.defaults), "a rule without a threshold judges by nothing"
    for name, source in rule.sources().items():
        assert isinstance(getattr(rule.defaults, name), int | float), name
        assert len(source) > 10, f"{name} does not say where it comes from"


@every_rule
def test_a_rule_is_frozen_and_declares_what_it_needs(rule: Rule) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(rule.defaults, fields(rule.defaults)[0].name, 0)
    assert rule.needs or rule.parts or rule.id in ("broken-log", "resume-seam")


@every_rule
def test_a_rule_says_its_own_id_and_loops_over_no_file(rule: Rule) -> None:
    source = inspect.getsource(import_module(f"forensics.diagnose.rules.{module_name(rule)}"))
    said = set(re.findall(r'rule="([^"]+)"', source))
    assert said <= {rule.id}
    assert not re.search(r"\bopen\(|\bread_text\(|\bprint\(", source)
    assert Finding.__name__ in source


@every_rule
def test_a_rule_has_cases_in_which_it_fires_and_in_which_it_is_silent(rule: Rule) -> None:
    path = TESTS / f"test_{module_name(rule)}.py"
    assert path.exists(), f"{path.name} is missing"
    names = re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert any(name.startswith("test_fires") for name in names)
    assert any(name.startswith("test_silent") for name in names)
