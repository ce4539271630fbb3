"""``forensics rules``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.diagnose.bisection import bisection
from forensics.diagnose.rules import GROUPS, RULES
from forensics.render.rules_text import ID_WIDTH


def test_all_rules_are_listed_by_group_with_their_summaries(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules"]) == 0
    text = capsys.readouterr().out
    listed = [line.split()[0] for line in text.splitlines() if line[:2] == "  " and line[2] != " "]
    assert listed == [rule.id for rule in RULES]
    squeezed = " ".join(text.split())
    for group, members in GROUPS.items():
        assert group.upper() in text
        assert members
    for rule in RULES:
        assert rule.summary.split()[0] in squeezed
    assert max(map(len, text.splitlines())) <= 80


def test_ids_fit_their_column() -> None:
    assert max(len(rule.id) for rule in RULES) <= ID_WIDTH


@pytest.mark.parametrize("rule", [*RULES, bisection], ids=lambda rule: rule.id)
def test_each_rule_explains_itself_with_its_thresholds_and_their_sources(
    rule: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", rule.id]) == 0  # type: ignore[attr-defined]
    text = capsys.readouterr().out
    squeezed = " ".join(text.split())
    for section in ("What it detects", "Why it matters", "Evidence", "Silent when", "Needs"):
        assert f"\n{section}\n" in text
    for name, source in rule.sources().items():  # type: ignore[attr-defined]
        assert f"    {name} = " in text
        assert " ".join(source.split()) in squeezed
    assert max(map(len, text.splitlines())) <= 80


def test_underscores_and_capitals_are_forgiven(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "Nonfinite_Loss"]) == 0
    assert capsys.readouterr().out.startswith("nonfinite-loss\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nonfinit-loss", "did you mean nonfinite-loss"),
        ("spike", "did you mean loss-spike or gradient-spike?"),
        ("qqq", "`forensics rules` lists them"),
    ],
)
def test_an_unknown_rule_is_answered_with_the_nearest(
    name: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", name]) == 2
    assert hint in capsys.readouterr().err


def test_json_tells_every_rule_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["rules"]
    assert [entry["rule"] for entry in told] == [rule.id for rule in RULES]
    for entry, rule in zip(told, RULES, strict=True):
        assert rule in GROUPS[entry["group"]]
        assert entry["doc"].startswith(entry["summary"])
        assert {t["name"]: t["source"] for t in entry["thresholds"]} == rule.sources()


def test_one_rule_alone_is_told_in_every_format(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["rules", "loss-spike", "--format", "json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["rules"]
    assert (entry["rule"], entry["needs"]) == ("loss-spike", ["loss"])
    assert main(["rules", "loss-spike", "--out", str(tmp_path / "spike.md")]) == 0
    text = (tmp_path / "spike.md").read_text()
    assert text.startswith("## loss-spike\n")
    assert "| `z` | `8.0` |" in text
    assert "nonfinite-loss" not in text


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_what_a_replay_located_is_explained_like_a_rule(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "bisection", "--format", form]) == 0
    assert "A replay of the training has located the fault" in capsys.readouterr().out
