"""The report as JSON for other programs: a contract, versioned by ``FORMAT_VERSION``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import forensics
from forensics.diagnose.finding import Diagnosis, Evidence, Finding, RunFacts, Verdict
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_json(
    diagnoses: Sequence[Diagnosis],
    *,
    errors: Sequence[Mapping[str, str]] = (),
    settings: str = "",
) -> str:
    """One JSON document on any number of runs, ended by a newline; pure ASCII.

    NaN and infinities are the texts "NaN", "Infinity" and "-Infinity", enums their names in lower
    case, and what is unknown is null (a number) or "" (a text). The order of keys and lists is
    stable: the same runs give the same bytes.

    Args:
        diagnoses: in the order the runs were given.
        errors: ``{"path", "message"}`` of each run that could not be read.
        settings: the file that changed rules or thresholds, if any.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "settings": settings,
        "reports": [report(diagnosis) for diagnosis in diagnoses],
        "errors": [dict(error) for error in errors],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def report(diagnosis: Diagnosis) -> dict[str, Any]:
    """One run's part of the document, ready for ``json.dumps(..., allow_nan=False)``."""
    return {
        "run": _run(diagnosis.run),
        "verdict": _verdict(diagnosis.verdict),
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "rules": [
            {"rule": rule.rule, "outcome": rule.outcome.value, "reason": rule.reason}
            for rule in diagnosis.rules
        ],
    }


def _run(run: RunFacts) -> dict[str, Any]:
    return {
        "path": run.path,
        "steps": run.steps,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "source_format": run.source_format,
        "precision": run.precision,
        "scaler": run.scaler,
        "clip_threshold": json_value(run.clip_threshold),
        "duration_s": json_value(run.duration_s),
        "ended": run.ended,
        "repairs": list(run.repairs),
        "superseded": list(run.superseded),
        "missing": list(run.missing),
        "interval": run.interval,
        "unit": run.unit,
        "doubt": run.doubt,
        "learned": list(run.learned),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status.value,
        "root": verdict.root,
        "summary": verdict.summary,
        "consequences": list(verdict.consequences),
        "unrelated": list(verdict.unrelated),
        "undecided": list(verdict.undecided),
        "timeline": [
            {"when": entry.when, "title": entry.title, "detail": entry.detail}
            for entry in verdict.timeline
        ],
        "next_command": verdict.next_command,
        "cause": verdict.cause,
        "remedy": verdict.remedy,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.word,
        "message": finding.message,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "earliest_step": finding.earliest_step,
        "subject": finding.subject,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "evidence": [_evidence(evidence) for evidence in finding.evidence],
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "signal": evidence.signal,
        "steps": list(evidence.steps),
        "values": json_value(evidence.values),
        "threshold": json_value(evidence.threshold),
        "places": list(evidence.places),
    }
