"""The report as Markdown, to be pasted into an issue tracker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from forensics.diagnose.finding import Diagnosis, Status
from forensics.render.phrases import facts_line, lost, message, place, points, remedies, span, tally
from forensics.render.safe_text import map_texts, markdown, visible

MOST_ROWS = 30
"""Findings in the table; more are counted (a tracker is read, JSON is searched)."""


def render_markdown(diagnosis: Diagnosis, *, verbose: bool = False, settings: str = "") -> str:
    """Verdict, chain of events, findings, what to do, next command; ends in one newline.

    Args:
        diagnosis: what to tell; whatever its texts hold renders as itself.
        verbose: every finding, and why rules were skipped.
        settings: the file that changed rules or thresholds, if any.
    """
    safe = map_texts(diagnosis, markdown)
    verdict = safe.verdict
    blocks = [
        f"## {markdown(place(diagnosis.run))}: {_status(verdict.status)}",
        facts_line(safe.run),
        *safe.run.superseded,
        *lost(safe.run),
        f"**Verdict:** {verdict.summary}",
        _timeline(safe),
        *_bullets("Open", verdict.undecided),
        *_findings(safe, verbose),
        *_advice(safe),
        *next_command(diagnosis.verdict.next_command),
        *(_rules(safe) if verbose else ()),
        f"<sub>{_tally(safe, verbose, settings)}</sub>",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _tally(safe: Diagnosis, verbose: bool, settings: str) -> str:
    terse = safe.verdict.status is Status.HEALTHY
    return tally(safe, verbose=verbose, terse=terse, settings=markdown(settings))


def _status(status: Status) -> str:
    return status.value.replace("-", " ")


def _timeline(safe: Diagnosis) -> str:
    rows = [(e.when, e.title, e.detail) for e in safe.verdict.timeline]
    return _table(("step", "what", "numbers"), rows) if rows else ""


def _findings(safe: Diagnosis, verbose: bool) -> list[str]:
    if not safe.findings:
        return []
    verdict = safe.verdict
    relation = dict.fromkeys(verdict.consequences, "follows from it")
    if verdict.root is not None:
        relation[verdict.root] = "**the root**"
    order = [*relation, *(i for i in range(len(safe.findings)) if i not in relation)]
    order.sort(key=lambda i: i != verdict.root)
    shown = order if verbose else order[:MOST_ROWS]
    rows = [
        (
            safe.findings[i].severity.word,
            safe.findings[i].rule,
            span(safe.findings[i], safe.run),
            relation.get(i, ""),
            message(safe.findings[i]),
        )
        for i in shown
    ]
    table = _table(("severity", "rule", "steps", "", "what"), rows)
    more = len(order) - len(shown)
    folded = [f"… and {more:,} more findings."] if more else []
    return ["### Findings", table, *folded, *_evidence(safe)]


def _evidence(safe: Diagnosis) -> list[str]:
    """The root's points and its usual cause."""
    if safe.verdict.root is None:
        return []
    root = safe.findings[safe.verdict.root]
    lines = [f"- {evidence.signal}: {points(evidence)}" for evidence in root.evidence]
    cause = [f"**Cause:** {root.cause}"] if root.cause else []
    return [f"**Evidence** for {root.rule}:\n\n" + "\n".join(lines), *cause] if lines else cause


def _advice(safe: Diagnosis) -> list[str]:
    advice = [
        f"{number}. {remedy if number == 1 else f'{finding.rule}: {remedy}'}"
        for number, (finding, remedy) in enumerate(remedies(safe), start=1)
    ]
    verdict = safe.verdict
    cause = [f"**Cause:** {verdict.cause}"] if verdict.cause else []
    told = [*([verdict.remedy] if verdict.remedy else []), *(["\n".join(advice)] if advice else [])]
    return [*cause, *(["### What to do", *told] if told else [])]


def next_command(command: str) -> list[str]:
    """The command in a fence longer than any run of backticks in it."""
    if not command:
        return []
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return ["### Next", f"{fence}sh\n{visible(command)}\n{fence}"]


def _rules(safe: Diagnosis) -> list[str]:
    skipped = [f"{r.rule}: {r.reason}" for r in safe.rules if r.outcome.value == "skipped"]
    return [*_bullets("Skipped", skipped), *_bullets("Repairs", safe.run.repairs)]


def _bullets(title: str, texts: Iterable[str]) -> list[str]:
    lines = [f"- {text}" for text in texts]
    return [f"### {title}", "\n".join(lines)] if lines else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
