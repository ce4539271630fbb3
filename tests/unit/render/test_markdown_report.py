"""The Markdown report: tables that stay tables whatever the log holds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from forensics.render.markdown_report import MOST_ROWS, render_markdown
from tests.unit.render.sample_diagnoses import (
    SAMPLES,
    forward_overflow,
    healthy,
    hostile,
    undecided,
)

BARE_PIPE = re.compile(r"(?<!\\)\|")


def test_it_tells_verdict_events_findings_advice_and_the_next_command() -> None:
    text = render_markdown(forward_overflow())
    heads = ["**Verdict:**", "| step |", "### Findings", "### What to do", "### Next"]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert "```sh\nforensics bisect --ckpt-dir runs/gpt-7b/checkpoints\n```" in text
    assert "| critical | nonfinite-loss | 8,218 → end | **the root** |" in text


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_row_has_as_many_cells_as_its_head(name: str, verbose: bool) -> None:
    blocks = render_markdown(SAMPLES[name](), verbose=verbose).split("\n\n")
    for block in blocks:
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(BARE_PIPE.findall(row)) for row in rows}) <= 1


def test_a_name_cannot_break_out() -> None:
    text = render_markdown(hostile(), verbose=True)
    fence = text.index("````sh")
    outside = text[:fence] + text[text.index("````", fence + 4) :]
    assert "<b>" not in outside
    assert "`x`" not in outside.replace("\\`", "")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\n# head" not in text


def test_a_fence_is_longer_than_any_in_the_command() -> None:
    text = render_markdown(hostile())
    assert text.count("````") == 2


def test_many_findings_are_counted_beyond_a_limit() -> None:
    diagnosis = undecided()
    many = replace(diagnosis, findings=diagnosis.findings * 2)
    text = render_markdown(many)
    assert f"… and {len(many.findings) - MOST_ROWS:,} more findings." in text
    assert "more findings" not in render_markdown(many, verbose=True)


def test_a_healthy_run_has_no_empty_sections() -> None:
    text = render_markdown(replace(healthy(), findings=()), settings="a_b_.toml")
    assert "###" not in text
    assert "settings from a_b\\_.toml" in text


def test_verbose_says_why_rules_were_skipped() -> None:
    text = render_markdown(forward_overflow(), verbose=True)
    assert "- activation-overflow-risk: no activation statistics" in text
    assert "- the last line was cut and is dropped" in text
