"""One run as the page tells it: words and rows, ready for the template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forensics.diagnose.bisection_file import bisection_of
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.finding import Diagnosis, Evidence, Finding, RunFacts, Status
from forensics.diagnose.report_order import FOLLOWS, ROOT, FindingGroup, report_order
from forensics.diagnose.wording import number, power_of_two
from forensics.frozen import dataclass
from forensics.render import bisection_phrases as told
from forensics.render.html.charts import ChartView, chart_views, charts_json
from forensics.render.html.configuration import configuration
from forensics.render.html.parameters import ParamsView, params_view
from forensics.render.markdown_report import render_markdown
from forensics.render.phrases import (
    MOST_REMEDIES,
    facts_line,
    lost,
    message,
    remedies,
    span,
    tally,
)
from forensics.runlog.run import Run

MOST_EPISODES = 50
"""Episodes of one rule that are listed; JSON has them all."""
STATUS_WORDS = {
    Status.HEALTHY: "healthy",
    Status.FAULTY: "faulty",
    Status.UNDECIDED: "undecided",
    Status.INSUFFICIENT_DATA: "insufficient data",
}
_RELATIONS = {ROOT: "the root cause", FOLLOWS: "follows from the root"}


@dataclass(frozen=True, kw_only=True)
class EvidenceView:
    """One signal's points: rows of a place and a value."""

    signal: str
    limit: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One group of findings under its number."""

    number: int
    rule: str
    severity: str
    where: str
    relation: str
    root: bool
    message: str
    cause: str
    remedy: str
    evidence: tuple[EvidenceView, ...]
    episodes: tuple[tuple[str, str], ...]
    more_episodes: int


@dataclass(frozen=True, kw_only=True)
class BisectionView:
    """What a bisection found, and the table of what was tried."""

    located: bool
    headline: str
    verdict: str
    lines: tuple[tuple[str, str], ...]
    trials: tuple[tuple[str, str, str], ...]
    remedy: tuple[str, ...]
    notes: tuple[str, ...]
    capsule: str
    next_command: str


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run's section of the page.

    Attributes:
        key: what the ids of the section begin with.
        facts: the line below the path.
        summary: the verdict in a sentence or two.
        cause: of the root; empty where there is none.
        notes: what else the reader must know of the log, a clause each.
        advice: what to do first: the rule it is for (empty for the root) and the text.
        more_advice: the rest of it.
        tally: rules clear, skipped and failed, repairs.
        charts: what stands around the drawings; empty where there is nothing to draw.
        chart_data: what is drawn, plain JSON.
        markdown: the whole report for an issue tracker.
    """

    key: str
    diagnosis: Diagnosis
    status: str
    facts: str
    summary: str
    cause: str
    notes: tuple[str, ...]
    findings: tuple[FindingView, ...]
    advice: tuple[tuple[str, str], ...]
    more_advice: tuple[tuple[str, str], ...]
    tally: str
    charts: tuple[ChartView, ...]
    chart_data: dict[str, Any]
    unit: str
    params: ParamsView | None
    bisection: BisectionView | None
    bisection_notes: tuple[str, ...]
    configuration: tuple[tuple[str, str], ...]
    markdown: str


def run_view(
    diagnosis: Diagnosis, key: str, *, places: int, close_up: int = 0, settings: str = ""
) -> RunView:
    """A run's section.

    Args:
        diagnosis: what to tell; its ``source`` gives charts, parameters, bisection and
            configuration, which are left out where it is None.
        key: unique in the page.
        places: stretches of steps that a chart has at most.
        close_up: rows around the findings that have a stretch of their own besides, at most.
        settings: the file that changed rules or thresholds, if any.
    """
    run = diagnosis.source
    charts = None
    if run is not None:
        charts = chart_series(run, diagnosis, places=places, close_up=close_up)
    result, notes = (None, ()) if run is None else bisection_of(run)
    advice = tuple(_advice(diagnosis))
    root = diagnosis.verdict.root
    return RunView(
        key=key,
        diagnosis=diagnosis,
        status=STATUS_WORDS[diagnosis.verdict.status],
        facts=facts_line(diagnosis.run),
        summary=summary_of(diagnosis),
        cause=diagnosis.verdict.cause if root is None else diagnosis.findings[root].cause,
        notes=(*diagnosis.run.superseded, *lost(diagnosis.run)),
        findings=finding_views(diagnosis),
        advice=advice[:MOST_REMEDIES],
        more_advice=advice[MOST_REMEDIES:],
        tally=tally(diagnosis, verbose=True, settings=settings),
        charts=() if charts is None else chart_views(charts),
        chart_data={} if charts is None else charts_json(charts),
        unit=diagnosis.run.unit,
        params=None if run is None else params_view(run),
        bisection=None if result is None else _bisection(result),
        bisection_notes=notes,
        configuration=() if run is None else _configuration(run),
        markdown=render_markdown(diagnosis, verbose=True, settings=settings),
    )


def summary_of(diagnosis: Diagnosis) -> str:
    """The verdict's own, unless it is no more than the word that stands beside it."""
    summary = diagnosis.verdict.summary
    bare = summary.rstrip(".").casefold() == STATUS_WORDS[diagnosis.verdict.status]
    return "Nothing was found that a healthy run does not do." if bare else summary


def _configuration(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(configuration(run.manifest))


def _advice(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if diagnosis.verdict.remedy:
        yield "", diagnosis.verdict.remedy
    for place, (finding, remedy) in enumerate(remedies(diagnosis)):
        yield (finding.rule if place else ""), remedy


def finding_views(diagnosis: Diagnosis) -> tuple[FindingView, ...]:
    """The findings in the order of every report, numbered from 1."""
    groups = enumerate(report_order(diagnosis), start=1)
    return tuple(_finding(place, group, diagnosis.run) for place, group in groups)


def _finding(place: int, group: FindingGroup, run: RunFacts) -> FindingView:
    finding = group.head
    others = [f for f in group.findings if f is not finding]
    return FindingView(
        number=place,
        rule=finding.rule,
        severity=finding.severity.word,
        where=_where(finding, run),
        relation=_RELATIONS.get(group.relation, ""),
        root=group.relation == ROOT,
        message=message(finding),
        cause=finding.cause,
        remedy=finding.remedy,
        evidence=tuple(map(_evidence, finding.evidence)),
        episodes=tuple((_where(f, run), message(f)) for f in others[:MOST_EPISODES]),
        more_episodes=max(len(others) - MOST_EPISODES, 0),
    )


def _where(finding: Finding, run: RunFacts) -> str:
    where = span(finding, run)
    return where if where == "whole run" else f"{run.unit} {where}"


def _evidence(evidence: Evidence) -> EvidenceView:
    written = power_of_two if evidence.signal == "scaler_scale" else number
    places = evidence.places or tuple(f"{step:,}" for step in evidence.steps)
    limit = evidence.threshold
    known = limit is not None and limit == limit
    return EvidenceView(
        signal=evidence.signal,
        limit=written(limit) if known and limit is not None else "",
        rows=tuple(zip(places, map(written, evidence.values), strict=True)),
    )


def _headed(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The lines that have a text; one without a label joins the one before: no header is empty."""
    headed: list[tuple[str, str]] = []
    for label, text in lines:
        if text and (label or not headed):
            headed.append((label, text))
        elif text:
            headed[-1] = (headed[-1][0], f"{headed[-1][1]}; {text}")
    return tuple(headed)


def _bisection(result: BisectionResult) -> BisectionView:
    located = result.status is BisectStatus.LOCATED
    lines = [("states", told.states(result)), ("replay", told.replay(result))]
    lines += told.details(result)
    if result.bad_tensors:
        lines.append(("bad", told.names(result.bad_tensors)))
    if result.missing:
        lines.append(("missing", "; ".join(result.missing)))
    trials = result.what_if
    return BisectionView(
        located=located,
        headline=told.headline(result) if located else "",
        verdict=(result.reason if located else told.verdict(result)),
        lines=_headed(lines),
        trials=tuple(
            (one.change, told.outcome(one, result.first_bad_step), told.note(one)) for one in trials
        ),
        remedy=result.remedy,
        notes=result.notes,
        capsule=told.capsule(result) if result.capsule else "",
        next_command=result.next_command,
    )
