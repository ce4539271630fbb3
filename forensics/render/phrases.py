"""Words for what every format tells alike: the facts line, spans, points of evidence, the tally."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from forensics.diagnose.finding import (
    Diagnosis,
    Evidence,
    Finding,
    Outcome,
    RuleOutcome,
    RunFacts,
)
from forensics.diagnose.wording import number, power_of_two, start_of, steps

MOST_POINTS = 8
"""Points of one evidence line that are shown; JSON has them all."""
MOST_REMEDIES = 4
"""Pieces of advice that are shown unasked; nobody follows a fifth at night."""
MOST_REASONS = 3
"""Reasons for skipped rules that are told unasked; more are counted."""
MOST_REPAIRS = 3
"""Repairs that are told unasked; more are counted."""
MOST_NAMES = 2
"""Rule names behind a reason that are told unasked; more are counted."""


def place(run: RunFacts) -> str:
    """What was read, as a person calls it."""
    return "standard input" if run.path == "-" else run.path


def facts_line(run: RunFacts) -> str:
    """``12,480 steps · fp16, GradScaler · clip at 1 · 3 h 12 min``: what is known of the run."""
    parts = [_extent(run)]
    if run.source_format != "forensics":
        doubt = f" by its looks ({run.doubt})" if run.doubt else ""
        parts.append(f"read as {run.source_format}{doubt}")
    own = "GradScaler" if run.source_format == "forensics" else "loss scaler"
    scaler = {True: own, False: "no loss scaler", None: ""}[run.scaler]
    if run.precision:
        wants_scaler = run.scaler or run.precision == "fp16"
        parts.append(", ".join(filter(None, [run.precision, scaler if wants_scaler else ""])))
    if run.clip_threshold is not None:
        parts.append(f"clip at {number(run.clip_threshold)}")
    if run.duration_s is not None:
        parts.append(duration(run.duration_s))
    if run.ended:
        parts.append(run.ended)
    return " · ".join(parts)


def lost(run: RunFacts) -> list[str]:
    """What the recording could not write, and what its reader inferred, a line each."""
    missing = [f"not recorded: {clause}" for clause in run.missing]
    return [*missing, *(clause for clause in run.learned)]


def _extent(run: RunFacts) -> str:
    """How many steps, and which where they are not simply the first so many."""
    if run.first_step is None or run.last_step is None:
        return "no steps"
    if run.unit != "step":
        count = f"{run.steps:,} {_plural(run.unit, run.steps)}"
        return f"{count}, {run.first_step:,} to {run.last_step:,}" if run.first_step else count
    rows = f"{run.steps:,} {_plural('row', run.steps)}"
    counted = ", counted: the log names no steps" if run.counted else ""
    if run.interval > 1:
        spaced = f"one every {run.interval:,} steps, {run.first_step:,} to {run.last_step:,}"
        return f"{rows}, {spaced}{counted}"
    if counted:
        return f"{rows}{counted}"
    if (run.first_step, run.last_step) == (0, run.steps - 1):
        return steps(run.steps)
    if run.steps == 1:
        return f"1 row, step {run.first_step:,}"
    count = f"{run.steps:,} rows"
    if run.last_step - run.first_step + 1 == run.steps:
        count = steps(run.steps)
    return f"{count}, {run.first_step:,} to {run.last_step:,}"


def duration(seconds: float) -> str:
    """``0.4 s``, ``45 s``, ``12 min``, ``3 h 12 min``, ``2 d 4 h``."""
    if seconds < 10:
        return f"{number(seconds, 2)} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def span(finding: Finding, run: RunFacts) -> str:
    """``8,217``, ``38 → 39``, ``31–40 → end`` (a start between two) or ``whole run``."""
    first, last = finding.first_step, finding.last_step
    start = start_of(finding)
    if first == last:
        return start
    to_end = last == run.last_step
    if to_end and first == run.first_step:
        return "whole run"
    return f"{start} → {'end' if to_end else f'{last:,}'}"


def message(finding: Finding) -> str:
    """The finding's message, opened by its subject where the message does not name it."""
    if finding.subject and finding.subject not in finding.message:
        return f"{finding.subject}: {finding.message}"
    return finding.message


def points(evidence: Evidence, most: int | None = MOST_POINTS) -> str:
    """``2.41 at 8,217, NaN at 8,218 (limit 65,504)``; the middle of a long series is left out."""
    written = power_of_two if evidence.signal == "scaler_scale" else number
    places = evidence.places or [f"{step:,}" for step in evidence.steps]
    pairs = [f"{written(v)} at {at}" for at, v in zip(places, evidence.values, strict=True)]
    if not pairs:
        return "not written at these steps"
    if most is not None and len(pairs) > most:
        half = most // 2
        pairs = [*pairs[:half], "…", *pairs[-half:]]
    unknown = evidence.threshold is None or math.isnan(evidence.threshold)
    limit = "" if unknown else f" (limit {written(evidence.threshold or 0.0)})"
    return ", ".join(pairs) + limit


def remedies(diagnosis: Diagnosis) -> list[tuple[Finding, str]]:
    """What to do, in order: for the root, then for each unrelated fault; every advice once.

    What a consequence advises is left out: it goes when its root goes. Notes (info) advise only
    where nothing worse was found.
    """
    verdict, findings = diagnosis.verdict, diagnosis.findings
    serious = [findings[i] for i in verdict.unrelated if findings[i].severity > 0]
    chosen = ([] if verdict.root is None else [findings[verdict.root]]) + serious
    said: dict[str, Finding] = {}
    for finding in chosen:
        if finding.remedy:
            said.setdefault(finding.remedy, finding)
    return [(finding, remedy) for remedy, finding in said.items()]


def tally(diagnosis: Diagnosis, *, verbose: bool, terse: bool = False, settings: str = "") -> str:
    """The last line: rules clear, skipped and failed, repairs, settings.

    Args:
        diagnosis: what to tell.
        verbose: everything is told elsewhere, so count only.
        terse: count the skipped without their reasons (a healthy run needs three lines).
        settings: the file that changed rules or thresholds, if any.
    """
    by_outcome = {o: [r for r in diagnosis.rules if r.outcome is o] for o in Outcome}
    clear = len(by_outcome[Outcome.CLEAR])
    parts = [f"{clear} {_plural('rule', clear)} clear"]
    parts += _skipped(by_outcome[Outcome.SKIPPED], verbose=verbose, terse=terse)
    parts += _failed(by_outcome[Outcome.FAILED])
    parts += _repairs(diagnosis.run.repairs, verbose=verbose)
    parts += [f"settings from {settings}"] if settings else []
    return " · ".join(parts)


def reasons(rules: Iterable[RuleOutcome]) -> dict[str, list[str]]:
    """The names of rules by the reason they share, in the order met."""
    grouped: dict[str, list[str]] = {}
    for rule in rules:
        grouped.setdefault(rule.reason, []).append(rule.rule)
    return grouped


def _skipped(skipped: Sequence[RuleOutcome], *, verbose: bool, terse: bool) -> list[str]:
    if not skipped:
        return []
    head = f"{len(skipped)} skipped"
    grouped = reasons(skipped)
    if verbose:
        return [head]
    if terse or len(grouped) > MOST_REASONS:
        return [f"{head} (--verbose says why)"]
    told = "; ".join(f"{reason}: {_names(names)}" for reason, names in grouped.items())
    return [f"{head} ({told})"]


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMES])} and {more} more"


def _failed(failed: Sequence[RuleOutcome]) -> list[str]:
    if not failed:
        return []
    told = ", ".join(f"{rule.rule} ({rule.reason})" for rule in failed)
    return [f"{len(failed)} {_plural('rule', len(failed))} failed, a bug of ours: {told}"]


def _repairs(repairs: Sequence[str], *, verbose: bool) -> list[str]:
    if not repairs:
        return []
    head = f"{len(repairs)} {_plural('repair', len(repairs))}"
    if verbose:
        return [head]
    more = len(repairs) - MOST_REPAIRS
    told = [*repairs[:MOST_REPAIRS], *([f"{more} more (--verbose)"] if more > 0 else [])]
    return [f"{head}: {', '.join(told)}"]


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
