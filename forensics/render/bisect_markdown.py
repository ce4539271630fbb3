"""A bisection as Markdown, to be pasted into an issue tracker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.render.bisection_phrases import (
    capsule,
    details,
    headline,
    names,
    note,
    outcome,
    replay,
    states,
    verdict,
)
from forensics.render.markdown_report import next_command
from forensics.render.safe_text import map_texts, markdown

MOST_STATES = 20
"""Bad and untestable states in the list; JSON has them all."""


def render_bisect_markdown(result: BisectionResult) -> str:
    """The answer, its proof, what was tried, what to do; ends in one newline.

    Whatever the result's texts hold renders as itself.
    """
    safe = map_texts(result, markdown)
    blocks = [
        f"## {safe.path}: {_title(safe)}",
        states(safe),
        safe.reason if safe.status is BisectStatus.LOCATED else verdict(safe),
        replay(safe),
        _table(
            ("", ""), [(f"**{label}**" if label else "", text) for label, text in details(safe)]
        ),
        *_health(safe),
        *_what_if(safe),
        *_list("What to do", safe.remedy),
        *_list("Notes", safe.notes),
        f"**Capsule:** {capsule(safe)}" if safe.capsule else "",
        *next_command(result.next_command),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _title(safe: BisectionResult) -> str:
    if safe.first_bad_step is not None:
        return f"first bad step {headline(safe)}"
    bad = next((state for state in safe.checkpoints if state.verdict == "bad"), None)
    if safe.status is BisectStatus.LOCATED and bad is not None:
        return f"first bad state step {bad.step:,}"
    return safe.status.value.replace("-", " ")


def _health(safe: BisectionResult) -> list[str]:
    """What was judged by health alone."""
    told = [s for s in safe.checkpoints if s.verdict in ("bad", "untestable")][:MOST_STATES]
    rows = [(f"{s.step:,}", s.verdict, s.reason) for s in told] if safe.origin is None else []
    blocks = [_table(("state", "", "why"), rows)]
    if safe.bad_tensors:
        blocks.append(f"**Bad:** {names(safe.bad_tensors)}")
    if safe.missing:
        blocks.append(f"**Missing for a resume:** {'; '.join(safe.missing)}")
    return blocks


def _what_if(safe: BisectionResult) -> list[str]:
    rows = [(t.change, outcome(t, safe.first_bad_step), note(t)) for t in safe.what_if]
    return ["### What if", _table(("change", "outcome", ""), rows)] if rows else []


def _list(title: str, texts: Iterable[str]) -> list[str]:
    lines = [f"- {text}" for text in texts]
    return [f"### {title}", "\n".join(lines)] if lines else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
