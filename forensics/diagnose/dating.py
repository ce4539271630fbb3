"""When something happened, in a log whose rows are not single steps.

A row of a sparse log covers all steps since the row before it: what it shows began somewhere among
them. Rules speak of the row's own step; here their findings are told as what the log can know:
between two steps, or in an epoch.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Finding
from forensics.diagnose.signals import Signals
from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.schema import CANONICAL_NAMES

EXACT = frozenset(("overfitting", "nonfinite-validation"))
"""Rules about validations, which are made at a step and not over the steps of a row."""
_NUMBERED = re.compile(r"\b([Ss])tep(?= \d)")
_COUNTED = re.compile(r"(?<=\d )step(s?)\b")
_STEPS_FROM = re.compile(r"\b([Ss])teps(?= \d)")


def dated(signals: Signals, finding: Finding) -> Finding:
    """The finding as far as this log can date it; as it is where every step is logged."""
    finding = _without_unlogged(signals, finding)
    facts = signals.table.facts
    if facts is not None and facts.unit == PER_EPOCH:
        return _in_epochs(finding)
    exact = finding.earliest_step is not None or finding.rule in EXACT
    if exact or "covered_steps" not in signals.table:
        return finding
    row = int(np.searchsorted(signals.step, finding.first_step))
    if row >= len(signals) or signals.step_at(row) != finding.first_step:
        return finding
    earliest = signals.table.first_of(row)
    if earliest >= finding.first_step:
        return finding
    message = _between(finding.message, earliest, finding.first_step)
    return replace(finding, message=message, earliest_step=earliest)


def _between(message: str, earliest: int, step: int) -> str:
    """The message with the step it names first told as a range."""
    number = re.escape(f"{step:,}")
    stretch = f"{earliest:,} and {step:,}"
    for said, told in (
        (rf"\bat step {number}\b(?!,\d)", f"between steps {stretch}"),
        (rf"\bin step {number}\b(?!,\d)", f"between steps {stretch}"),
        (rf"\bsteps {number} to\b", f"steps {earliest:,} to"),
        (rf"\b(from|since) step {number}\b(?!,\d)", rf"\1 a step between {stretch}"),
    ):
        message, count = re.subn(said, told, message, count=1)
        if count:
            break
    return message


def _in_epochs(finding: Finding) -> Finding:
    """The finding with epochs where it counts steps: its rows are epochs."""
    return replace(
        finding,
        message=in_epochs(finding.message),
        cause=in_epochs(finding.cause),
        remedy=in_epochs(finding.remedy),
    )


def in_epochs(text: str) -> str:
    """A text with ``epoch`` for each ``step`` that is counted or numbered."""
    text = _NUMBERED.sub(lambda m: "Epoch" if m.group(1) == "S" else "epoch", text)
    text = _STEPS_FROM.sub(lambda m: "Epochs" if m.group(1) == "S" else "epochs", text)
    return _COUNTED.sub(r"epoch\1", text)


def _without_unlogged(signals: Signals, finding: Finding) -> Finding:
    """The finding without evidence from a column that this log does not have."""
    known = tuple(
        evidence
        for evidence in finding.evidence
        if evidence.signal not in CANONICAL_NAMES or evidence.signal in signals.table
    )
    return finding if len(known) == len(finding.evidence) else replace(finding, evidence=known)
