"""The JSON contract: its keys, its spelling of what JSON has no number for, its stable bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forensics.render.json_report import FORMAT_VERSION, render_json
from tests.unit.render.sample_diagnoses import SAMPLES, forward_overflow, hostile

CONTRACT: dict[str, set[str]] = {
    "": {"format_version", "tool", "version", "reports"},
    "reports": {"run", "verdict", "findings", "rules"},
    "run": {
        "path",
        "steps",
        "first_step",
        "last_step",
        "source_format",
        "precision",
        "clip_threshold",
        "duration_s",
        "repairs",
    },
    "verdict": {
        "status",
        "root",
        "summary",
        "consequences",
        "unrelated",
        "undecided",
        "next_command",
        "cause",
        "remedy",
    },
    "findings": {
        "rule",
        "severity",
        "message",
        "first_step",
        "last_step",
        "subject",
        "cause",
        "remedy",
        "evidence",
    },
    "evidence": {"signal", "steps", "values", "threshold"},
    "rules": {"rule", "outcome", "reason"},
}


def parsed(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def objects_of(value: Any, name: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every object of a document with the key it stands under."""
    if isinstance(value, dict):
        inner = [pair for key, item in value.items() for pair in objects_of(item, key)]
        return [(name, value), *inner]
    if isinstance(value, list):
        return [pair for item in value for pair in objects_of(item, name)]
    return []


@pytest.mark.parametrize("name", SAMPLES)
def test_no_key_of_the_contract_is_missing_anywhere(name: str) -> None:
    found = objects_of(parsed(render_json([SAMPLES[name]()])))
    assert {key for key, _ in found} >= {"", "reports", "run", "verdict"}
    for key, value in found:
        assert CONTRACT.get(key, set()) <= set(value)


def test_the_values_are_those_of_the_diagnosis() -> None:
    document = parsed(render_json([forward_overflow()]))
    assert document["format_version"] == FORMAT_VERSION == 1
    assert document["tool"] == "forensics"
    report = document["reports"][0]
    assert report["run"]["steps"] == 12_480
    assert report["verdict"]["status"] == "faulty"
    assert report["verdict"]["consequences"] == [1, 2]
    assert [f["severity"] for f in report["findings"]] == [
        "critical",
        "critical",
        "error",
        "warning",
        "info",
    ]
    assert report["rules"][-1] == {
        "rule": "rank-divergence",
        "outcome": "skipped",
        "reason": "no per-rank logs (one rank only)",
    }


def test_what_is_no_number_is_a_text() -> None:
    values = parsed(render_json([forward_overflow()]))["reports"][0]["findings"][0]["evidence"][0]
    assert values["values"] == [2.43, 2.41, "NaN"]
    evidence = parsed(render_json([hostile()]))["reports"][0]["findings"][0]["evidence"][0]
    assert (evidence["values"], evidence["threshold"]) == (["-Infinity"], "Infinity")


def test_the_bytes_are_ascii_and_the_same_each_time() -> None:
    assert render_json([hostile()]).isascii()
    assert render_json([hostile()]) == render_json([hostile()])


def test_several_runs_errors_and_settings_are_one_document() -> None:
    text = render_json(
        [forward_overflow(), hostile()],
        errors=[{"path": "x", "message": "no such file"}],
        settings="forensics.toml",
    )
    document = parsed(text)
    assert len(document["reports"]) == 2
    assert document["errors"] == [{"path": "x", "message": "no such file"}]
    assert document["settings"] == "forensics.toml"
    assert text.endswith("}\n")
