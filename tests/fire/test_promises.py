"""The page on reliability names tests that exist, and every test here is named there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
OWN = ("test_the_probe_can_fail", "test_the_seeds_are_read_before_they_are_damaged")
"""Tests of the tests."""


def names_in(path: Path) -> set[str]:
    """Names of the test functions of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


@pytest.mark.parametrize(("module", "test"), NAMED)
def test_each_named_test_exists(module: str, test: str) -> None:
    assert test in names_in(ROOT / module)


def test_every_promise_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| (?!when|what \|)", line)]
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", row), row


def test_every_test_of_this_folder_holds_a_promise() -> None:
    named = {test for module, test in NAMED if module.startswith("tests/fire/")}
    ours = set().union(*map(names_in, Path(__file__).parent.glob("test_*.py")))
    assert ours - named - set(OWN) - names_in(Path(__file__)) == set()


def test_the_numbers_are_those_of_the_tests() -> None:
    kill = (ROOT / "tests/fire/test_kill.py").read_text(encoding="utf-8")
    mutated = (ROOT / "tests/fire/test_mutated_inputs.py").read_text(encoding="utf-8")
    a_chain = int(re.findall(r"KILLS_A_CHAIN = (\d+)", kill)[0])
    chains = [int(n) for n in re.findall(r"CHAINS = amount\((\d+), (\d+)\)", kill)[0]]
    batches = int(re.findall(r"BATCHES = (\d+)", mutated)[0])
    sizes = re.findall(r"amount\((\d+), (\d+)\)", mutated)
    inputs = [batches * sum(int(size[i]) for size in sizes) for i in (0, 1)]
    few, many = ([n * a_chain, inputs[i]] for i, n in enumerate(chains))
    assert f"({few[0]} kills, {few[1]} damaged inputs)" in PAGE
    assert f"({many[0]} and {many[1]:,})" in PAGE
