"""What a bisection located, told by the report: the verdict's root says where, and its proof."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    FaultKind,
    Origin,
    Persistence,
)
from forensics.diagnose.finding import Diagnosis, Finding, Severity, Status, TimelineEntry, Verdict
from forensics.diagnose.next_command import recipe_option
from forensics.diagnose.wording import sentence

RULE = "bisection"
"""Stands for a rule's id where a replay found what no rule of the log shows."""
_BAD = {FaultKind.NAN: "NaN", FaultKind.INF: "Inf"}


def with_located(diagnosis: Diagnosis, result: BisectionResult) -> Diagnosis:
    """The diagnosis with what the bisection found in its root.

    A fault that the log does not show (nothing is non-finite, but what was applied is wrong)
    becomes a finding of its own, and the root. A result that located nothing changes nothing.
    """
    step = result.first_bad_step
    known = result.origin is not None or result.reproduces is not None
    if result.status is not BisectStatus.LOCATED or step is None or not known:
        return diagnosis
    root = None if diagnosis.verdict.root is None else diagnosis.findings[diagnosis.verdict.root]
    if root is None or not _is_about(root, result):
        return _as_new_root(diagnosis, result, step)
    told = located(result) if result.origin is not None else f"{root.cause} {located(result)}"
    found = replace(
        root,
        cause=told.strip(),
        remedy=" ".join(result.remedy) or root.remedy,
        subject=root.subject or ("" if result.origin is None else _subject(result.origin)),
    )
    findings = list(diagnosis.findings)
    assert diagnosis.verdict.root is not None
    findings[diagnosis.verdict.root] = found
    verdict = _told(diagnosis, diagnosis.verdict.summary, result, step)
    return replace(diagnosis, findings=tuple(findings), verdict=verdict)


def finding_of(result: BisectionResult) -> Finding | None:
    """A located fault as a finding; None where no step was located."""
    step = result.first_bad_step
    if result.status is not BisectStatus.LOCATED or step is None:
        return None
    lasting = result.persistence is Persistence.PERSISTENT or result.damaged
    lasting = lasting or result.damage_stayed
    origin = result.origin
    return Finding(
        rule=RULE,
        severity=Severity.CRITICAL if lasting else Severity.ERROR,
        message=_message(origin, step),
        first_step=step,
        last_step=step,
        subject="" if origin is None else _subject(origin),
        cause=located(result),
        remedy=" ".join(result.remedy),
    )


def _message(origin: Origin | None, step: int) -> str:
    """The first bad step, and what is wrong in it."""
    if origin is None:
        return f"first bad step {step:,}"
    return f"first bad step {step:,}{_phase(origin)}: {origin.summary or _where(origin)}".rstrip(
        "."
    )


def located(result: BisectionResult) -> str:
    """The located fault in a few sentences: where, what, and what the replays proved."""
    origin, step = result.origin, result.first_bad_step or 0
    if origin is None:
        head = f"Bisected to step {step:,}; the trace of it names no operator"
        return " ".join(sentence(text) for text in (head, _proof(result)) if text)
    head = f"Located by bisection at step {step:,}{_phase(origin)}"
    sentences = [f"{head}: {origin.summary or _where(origin)}"]
    if origin.source_line:
        sentences.append(f"The line is {origin.source_line}")
    if result.growth is not None:
        sentences.append(f"It grew since step {result.growth.since_step:,}")
    sentences.append(_proof(result))
    return " ".join(sentence(text) for text in sentences if text)


def _phase(origin: Origin) -> str:
    return f", in {origin.phase}" if origin.phase not in ("", "outside", "input") else ""


def _where(origin: Origin) -> str:
    """``aten.bmm in blocks.11.attn makes Inf (forward)``."""
    if origin.phase == "outside":
        return "from outside the training; a replay stays sound"
    module = f" in {origin.module}" if origin.module else ""
    what = _BAD.get(origin.kind)
    made = f" makes {what}" if what else ""
    phase = f" ({origin.phase})" if origin.phase else ""
    return f"{origin.operator}{module}{made}{phase}"


def _proof(result: BisectionResult) -> str:
    parts = []
    if result.samples:
        shown = ", ".join(str(index) for index in result.samples[:4])
        more = " and more" if len(result.samples) > 4 else ""
        one = len(result.samples) == 1
        words = ("sample", "goes") if one else ("samples", "go")
        parts.append(f"{words[0]} {shown}{more} of {_whose(result)} alone {words[1]} bad")
    if result.reproduces is not None:
        parts.append("a replay reproduces it" if result.reproduces else "no replay reproduces it")
    lasting = result.persistence is Persistence.PERSISTENT
    raised = result.origin is not None and result.origin.kind is FaultKind.EXCEPTION
    if (raised or result.raised) and not lasting:
        parts.append("it ended the run")
    elif result.persistence is not Persistence.UNKNOWN:
        parts.append("it persists after the step" if lasting else f"it {is_over(result)}")
    return "; ".join(parts)


def is_over(result: BisectionResult) -> str:
    """What a transient fault leaves; in a replay its step is skipped, and the run may not have."""
    if result.damage_stayed:
        return "is over where the step is skipped; the run took it, and its damage stayed"
    return "is over after the step" + ("; its damage stays" if result.damaged else "")


def _whose(result: BisectionResult) -> str:
    """The batch that the samples are counted in: that of the step, or of a rank."""
    if result.rank is None or result.samples_note:
        return "its batch"
    if len(result.bad_ranks) <= 1:
        return f"rank {result.rank:,}'s batch"
    return f"the batch of each of ranks {', '.join(f'{rank:,}' for rank in result.bad_ranks[:4])}"


def located_as(result: BisectionResult) -> str:
    """In a few words what a bisection located, for a table: ``aten.log → NaN``, ``ValueError``."""
    origin = result.origin
    if origin is None:
        return RULE
    bad = _BAD.get(origin.kind)
    return f"{origin.operator} → {bad}" if bad and origin.phase != "outside" else origin.operator


def _subject(origin: Origin) -> str:
    return origin.parameter or origin.module


def _is_about(root: Finding, result: BisectionResult) -> bool:
    """Is the root of the log the fault that was located, or what came of it?"""
    step = result.first_bad_step
    return step is not None and step <= root.last_step + 1


def _as_new_root(diagnosis: Diagnosis, result: BisectionResult, step: int) -> Diagnosis:
    found = finding_of(result)
    assert found is not None
    findings = (*diagnosis.findings, found)
    old = diagnosis.verdict
    others = [] if old.root is None else [old.root, *old.consequences]
    verdict = replace(
        _told(diagnosis, sentence(found.message), result, step),
        status=Status.FAULTY,
        root=len(findings) - 1,
        consequences=(),
        unrelated=tuple(dict.fromkeys((*others, *old.unrelated))),
    )
    return replace(diagnosis, findings=findings, verdict=verdict)


def _told(diagnosis: Diagnosis, summary: str, result: BisectionResult, step: int) -> Verdict:
    """The verdict with the place in its timeline, and without the questions that are answered."""
    verdict = diagnosis.verdict
    detail = "" if result.origin is None else _where(result.origin)
    entry = TimelineEntry(when=f"{step:,}", title="located", detail=detail)
    at = next((i for i, e in enumerate(verdict.timeline) if _step_of(e) > step), None)
    before = verdict.timeline if at is None else verdict.timeline[:at]
    after = () if at is None else verdict.timeline[at:]
    answered = bool(result.reproduces)
    command = ""
    if result.capsule:
        recipe = recipe_option(diagnosis.source) if diagnosis.source is not None else ""
        command = f"forensics capsule run {shlex.quote(result.capsule)}{recipe}"
    return replace(
        verdict,
        summary=summary,
        timeline=(*before, entry, *after),
        undecided=() if answered else verdict.undecided,
        # A located fault is told here in full: what the log alone would ask for leads back.
        next_command=command,
    )


def _step_of(entry: TimelineEntry) -> int:
    """The step that an entry begins at; -1 where it tells none."""
    digits = re.match(r"[\d,]+", entry.when)
    return int(digits.group().replace(",", "")) if digits else -1
