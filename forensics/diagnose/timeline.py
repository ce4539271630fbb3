"""The chain of events as lines: lead-up, last healthy step, first bad step, what followed."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Finding, Severity, TimelineEntry
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, power_of_two, start_of
from forensics.runlog.steps import FloatArray

LEAD_UP = 100
"""Rows before the first bad step in which a lead-up is looked for."""
NOTABLE = 3.0
"""A lead-up is told when the norm left its earlier median by this factor (GPT pre-training norms
stay within 2.6 of theirs)."""
USUAL_SHARE = 0.95
"""Share of the norms before that a rise must exceed: the usual range of the run."""
MOST_FOLLOWERS = 6
"""Consequences told one by one; a reader at night reads no more."""


def timeline(
    signals: Signals, root: Finding, consequences: tuple[Finding, ...]
) -> tuple[TimelineEntry, ...]:
    """The chain from the lead-up to the last consequence.

    Args:
        signals: the run.
        root: the finding the chain starts with.
        consequences: in order of step.
    """
    told = [f for f in consequences if f.severity > Severity.INFO] or list(consequences)
    followers = _one_a_rule(told)[:MOST_FOLLOWERS]
    # The onset of a slow consequence may be read off a little early: time orders the lines, and no
    # step in which something serious had begun is called healthy.
    serious = [f.begins for f in (root, *followers) if f is root or f.severity > Severity.INFO]
    row = int(np.searchsorted(signals.step, min(serious)))
    before = [f for f in followers if f.begins < root.begins]
    after = [f for f in followers if f.begins >= root.begins]
    events = [(f.begins, _entry(f)) for f in (*before, root, *after)]
    lines = [*_lead_up(signals, row), *last_healthy(signals, row), *events]
    return tuple(entry for _, entry in sorted(lines, key=lambda line: line[0]))


def _one_a_rule(findings: list[Finding]) -> list[Finding]:
    """The first finding of each rule."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.rule, finding)
    return list(first.values())


def _entry(finding: Finding) -> TimelineEntry:
    lasting = finding.last_step > finding.first_step
    when = f"{start_of(finding)}→" if lasting else start_of(finding)
    return TimelineEntry(when=when, title=finding.rule, detail=finding.message)


def _lead_up(signals: Signals, row: int) -> list[tuple[int, TimelineEntry]]:
    """How far the gradient norm had left what was usual before the first bad step."""
    begin = max(0, row - LEAD_UP)
    recent, earlier = signals.norm[begin:row], signals.norm[:begin]
    usual = median(earlier) if len(earlier) >= LEAD_UP else median(recent)
    finite = np.flatnonzero(np.isfinite(recent))
    if len(finite) < 3 or not usual > 0:
        return []
    last = float(recent[finite[-1]])
    grown = last / usual
    if 1 / NOTABLE < grown < NOTABLE or grown < 0:
        return []
    beyond = recent > NOTABLE * usual if grown > 1 else recent < usual / NOTABLE
    left = np.flatnonzero(np.isfinite(recent) & beyond)
    if len(left) == 0:  # exactly at the limit
        return []
    since = begin + _start_of_last_run(left)
    if not _out_of_range(last, usual, signals.norm[: begin if len(earlier) >= LEAD_UP else since]):
        return []
    detail = f"gradient norm {factor(grown)} its median of {number(usual)}"
    step = signals.step_at(since)
    return [(step, TimelineEntry(when=f"{step:,}→", title="lead-up", detail=detail))]


def _out_of_range(last: float, usual: float, before: FloatArray) -> bool:
    """Is a norm outside of what the run did before?

    Among norms that swing widely a high one is one of many. A low one makes nothing overflow, so a
    fall is told only far below all there were.
    """
    seen = before[np.isfinite(before)]
    if len(seen) == 0:
        return last > usual
    if last > usual:
        return bool(last > np.quantile(seen, USUAL_SHARE))
    return bool(last < seen.min() / NOTABLE)


def _start_of_last_run(rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    """Where the last stretch of neighbouring rows begins."""
    breaks = np.flatnonzero(np.diff(rows) > 1)
    return int(rows[breaks[-1] + 1]) if len(breaks) else int(rows[0])


def last_healthy(signals: Signals, row: int) -> list[tuple[int, TimelineEntry]]:
    """The last step before a row that was taken with finite numbers: its step and its entry."""
    written = signals.present("loss") | signals.present("grad_l2_pre_clip")
    bad = signals.loss_bad | signals.norm_bad | signals.skipped
    good = np.flatnonzero(written[:row] & ~bad[:row])
    if len(good) == 0:
        return []
    last = int(good[-1])
    parts = []
    if np.isfinite(signals.loss[last]):
        parts.append(f"loss {number(signals.loss[last])}")
    if np.isfinite(signals.norm[last]):
        usual = median(signals.norm[max(0, last - 1000) : last])
        beside = f" (median {number(usual)})" if np.isfinite(usual) else ""
        parts.append(f"norm {number(signals.norm[last])}{beside}")
    if signals.scaler_active and np.isfinite(signals.scale[last]):
        parts.append(f"scale {power_of_two(float(signals.scale[last]))}")
    if np.isfinite(signals.lr[last]):
        parts.append(f"lr {number(signals.lr[last])}")
    step = signals.step_at(last)
    entry = TimelineEntry(when=f"{step:,}", title="last healthy step", detail="   ".join(parts))
    return [(step, entry)]
