"""Many runs as text, Markdown and JSON."""

from __future__ import annotations

import json

import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.survey import SurveyRow
from forensics.render.scan_json import render_scan_json
from forensics.render.scan_markdown import render_scan_markdown
from forensics.render.scan_text import render_scan_text

EVIL = "\x1b[31mred\n| \u202e<b>\x9b2J"
ROWS = (
    SurveyRow(
        path="runs/gpt 7b",
        status="faulty",
        severity=Severity.CRITICAL,
        root="nonfinite-loss",
        step=8218,
        wasted=0.34,
        steps=12480,
        summary="the loss is NaN from step 8,218 on",
    ),
    SurveyRow(path="runs/x", status="unreadable", summary="has no rows"),
    SurveyRow(
        path="runs/ok",
        status="healthy",
        severity=Severity.INFO,
        wasted=0.0004,
        steps=20000,
        summary="healthy",
    ),
)


def test_text_is_a_table_with_the_next_command() -> None:
    text = render_scan_text(ROWS)
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "runs/gpt 7b critical nonfinite-loss 8,218 34 % 12,480" in lines
    assert "runs/x unreadable – – – –" in lines
    assert "runs/ok healthy – – <0.1 % 20,000" in lines
    assert "runs/x: has no rows" in lines
    assert "3 runs: 1 critical, 1 unreadable, 1 healthy" in lines
    assert "NEXT forensics report 'runs/gpt 7b'" in lines


def test_a_run_without_a_root_says_what_is_known() -> None:
    rows = [
        SurveyRow(
            path="runs/dead",
            status="undecided",
            severity=Severity.CRITICAL,
            wasted=1.0,
            steps=90,
            summary="all 90 steps were skipped",
        ),
        SurveyRow(path="runs/oom", status="undecided", steps=96, summary="raised at step 96"),
    ]
    lines = [" ".join(line.split()) for line in render_scan_text(rows).splitlines()]
    assert "runs/dead critical undecided – 100 % 90" in lines
    assert "runs/oom undecided – – – 96" in lines
    assert "runs/dead: all 90 steps were skipped" in lines
    assert "runs/oom: raised at step 96" in lines
    assert "2 runs: 1 critical, 1 undecided" in lines
    assert "NEXT forensics report runs/dead" in lines
    markdown = render_scan_markdown(rows)
    assert "- runs/dead: all 90 steps were skipped" in markdown
    assert "- runs/oom: raised at step 96" in markdown


def test_colour_goes_by_severity_beside_the_word() -> None:
    text = render_scan_text(ROWS, colour=True)
    assert "\x1b[1;31mcritical\x1b[0m" in text
    assert "\x1b[33munreadable\x1b[0m" in text
    assert "\x1b[1;32mhealthy\x1b[0m" in text


def test_text_without_trouble_gives_no_command() -> None:
    text = render_scan_text(ROWS[2:])
    assert "NEXT" not in text
    assert "1 run: 1 healthy" in text


def test_a_long_path_goes_on_below() -> None:
    row = SurveyRow(path="/scratch/" + "experiment-" * 8 + "last", status="healthy")
    text = render_scan_text([row])
    assert max(map(len, text.splitlines())) <= 80
    assert "last" in text


def test_nothing_of_a_path_or_message_reaches_the_terminal_raw() -> None:
    rows = [SurveyRow(path=EVIL, status="unreadable", summary=EVIL)]
    text = render_scan_text(rows)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text
    markdown = render_scan_markdown(rows)
    assert "\x1b" not in markdown
    assert "<b>" not in markdown
    assert render_scan_json(rows).isascii()


def test_json_is_strict_and_in_the_same_order() -> None:
    data = json.loads(render_scan_json(ROWS), parse_constant=pytest.fail)
    assert [run["path"] for run in data["runs"]] == [row.path for row in ROWS]
    assert data["runs"][0]["severity"] == "critical"
    assert data["runs"][1]["severity"] is None
    assert data["runs"][0]["wasted"] == 0.34


def test_markdown_is_a_table_and_the_verdicts() -> None:
    text = render_scan_markdown(ROWS)
    assert "| runs/gpt 7b | critical | nonfinite-loss | 8,218 | 34 % | 12,480 |" in text
    assert "- runs/x: has no rows" in text
    assert "- runs/ok" not in text
