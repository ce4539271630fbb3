"""The step log as the first index: which step is suspect, and why, before anything is loaded.

No torch here. What a loss scaler does on a good day is no suspicion: the rules' own reading of the
log says which non-finite rows are routine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis, Finding, Severity
from forensics.diagnose.ranks import rank_column
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import clause, number
from forensics.replay.bad import NONFINITE, BadPredicate
from forensics.runlog.run import Run
from forensics.runlog.steps import BoolArray

_GROWTHS = frozenset(
    {
        "gradient-explosion",
        "loss-divergence",
        "weight-growth",
        "activation-overflow-risk",
        "depth-growth",
        "update-ratio",
        "learning-rate-fault",
        "loss-oscillation",
        "instability-at-warmup-end",
    }
)
"""Rules whose finding says that something grew, or was too large, before it overflowed."""
_ABOUT_THE_SCALER = frozenset(
    {
        "loss-scale-policy-broken",
        "loss-scale-frozen",
        "loss-scale-collapse",
        "loss-scale-oscillation",
        "phantom-skip",
        "high-skip-rate",
        "dead-run",
        "nonfinite-gradient",
        "resume-seam",
    }
)
"""Rules whose finding says that skips are more than the scaler's routine from then on."""
_NO_FAULT_OF_A_STEP = frozenset(
    {"broken-log", "stuck-log", "overfitting", "loss-plateau", "lost-rank"}
)
"""Rules about the log or the course of a whole run: there is no step of theirs to look into."""
_SPIKES = frozenset({"loss-spike", "gradient-spike", "stale-second-moment", "resume-seam"})
"""Rules whose finding, a mere note included, may be the echo of what the step before applied."""
_MOST_TOLD = 240
"""Characters of a recorded exception, its place included."""
MOST_AUDITS = 8
"""Steps that are looked into where nothing is non-finite; each costs some tens of plain steps."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """What the log says, before any state is loaded.

    Attributes:
        step: the first step that is bad by the log, or None.
        why: one clause: what is bad in that row.
        raised: it has no row, because the training raised there.
        root_step: where the diagnosis dates the cause of a growth; at most ``step``.
        audits: steps worth a closer look where nothing is bad, most telling first.
        root: the report's root finding where its verdict is faulty, or None.
        strict: steps in which an overflow is the fault itself, not the loss scaler's routine.
        unlogged: the first step in range without a row; None where every step has one.
        rows: rows that were looked at.
        routine: skipped steps among them that are the loss scaler at work.
    """

    step: int | None = None
    why: str = ""
    raised: bool = False
    root_step: int | None = None
    audits: tuple[int, ...] = ()
    root: Finding | None = None
    strict: frozenset[int] = frozenset()
    unlogged: int | None = None
    rows: int = 0
    routine: int = 0


def narrow(
    run: Run,
    predicate: BadPredicate,
    *,
    from_step: int | None = None,
    until_step: int | None = None,
) -> Suspicion:
    """Read the log.

    Args:
        run: its step log, manifest and snapshots are read.
        predicate: what counts as bad.
        from_step: look at no row before it.
        until_step: look at no row after it.

    Raises:
        UsageError: the log lacks the predicate's column.
    """
    signals = Signals(run)
    diagnosis = diagnose(replace(run, bisection=None))  # what an earlier bisection said is no log
    inside = _inside(signals, from_step, until_step)
    default = predicate.text == NONFINITE
    bad = bad_rows(signals, diagnosis) if default else predicate.rows(run.steps)
    rows = np.flatnonzero(bad & inside)
    first = signals.step_at(int(rows[0])) if len(rows) else None
    why = _why(signals, int(rows[0]), predicate) if len(rows) else ""
    raised = _raised_at(run, from_step, until_step) if default else None
    if raised is not None and (first is None or raised[0] < first):
        first, why = raised[0], _lost_rank(diagnosis, raised[0]) or raised[1]
    return Suspicion(
        step=first,
        why=why,
        raised=raised is not None and raised[0] == first,
        root_step=None if first is None else _root_step(diagnosis, first),
        strict=frozenset(signals.step[rows].tolist()) if default else frozenset(),
        audits=_audits(signals, diagnosis, inside),
        root=_root_finding(diagnosis, from_step, until_step),
        unlogged=_unlogged(signals, from_step, until_step),
        rows=int(inside.sum()),
        routine=int((signals.skipped & _routine(signals, diagnosis) & inside).sum()),
    )


def bad_rows(signals: Signals, diagnosis: Diagnosis) -> BoolArray:
    """Rows in which something is non-finite that no loss scaler explains, shape (rows,)."""
    bad = signals.loss_bad | signals.norm_bad | signals.norm_overflowed
    for name in _watched(signals):
        bad = bad | (signals.present(name) & ~np.isfinite(signals.column(name)))
    bad = bad | (signals.present("scaler_scale") & (signals.scale <= 0))
    if signals.run.ranks:
        bad = bad | rank_column(signals, "loss").bad.any(axis=0)
    return np.asarray(bad & ~_routine(signals, diagnosis), dtype=bool)


def _watched(signals: Signals) -> tuple[str, ...]:
    """Columns that must be finite: every group's rate (``lr``, ``lr_1`` …), scale and norms."""
    further = (name for name in signals.table if name.startswith("lr_"))
    return ("lr", *further, "scaler_scale", "update_l2", "param_l2", "ema_l2_distance")


def _routine(signals: Signals, diagnosis: Diagnosis) -> BoolArray:
    """Rows with overflows that are the scaler's routine, shape (rows,).

    What the rules do not hold against it, except where one of them says from when on it is none.
    """
    routine = signals.scaling.routine & ~signals.loss_bad
    for finding in diagnosis.findings:
        if finding.rule in _ABOUT_THE_SCALER and finding.severity >= Severity.WARNING:
            during = (signals.step >= finding.first_step) & (signals.step <= finding.last_step + 1)
            routine = routine & ~during
    return np.asarray(routine, dtype=bool)


def _inside(signals: Signals, first: int | None, last: int | None) -> BoolArray:
    inside = np.ones(len(signals), dtype=bool)
    if first is not None:
        inside &= signals.step >= first
    if last is not None:
        inside &= signals.step <= last
    return inside


def _unlogged(signals: Signals, first: int | None, last: int | None) -> int | None:
    """The first step in range that has no row."""
    expected = first or 0
    steps = signals.step[signals.step >= expected]
    gaps = np.flatnonzero(steps != np.arange(expected, expected + len(steps)))
    missing = expected + (int(gaps[0]) if len(gaps) else len(steps))
    if last is not None:
        return missing if missing <= last else None
    return missing if len(gaps) or not len(steps) else None


def _why(signals: Signals, row: int, predicate: BadPredicate) -> str:
    """What is bad in a row, as a clause."""
    if predicate.column:
        value = float(signals.column(predicate.column)[row])
        return f"{predicate.column} is {number(value)}" if predicate.comparison else predicate.text
    if signals.loss_bad[row]:
        return f"loss is {number(float(signals.loss[row]))}"
    if signals.norm_overflowed[row]:
        return "the gradient norm overflows though every gradient is finite"
    if signals.norm_bad[row]:
        return f"gradient norm is {number(float(signals.norm[row]))}"
    for name in _watched(signals):
        value = float(signals.column(name)[row])
        if signals.present(name)[row] and (not np.isfinite(value) or value <= 0):
            return f"{name} is {number(value)}"
    theirs = rank_column(signals, "loss")
    for rank in np.flatnonzero(theirs.bad[:, row]).tolist():
        return f"the loss of rank {rank + 1} is {number(float(theirs.values[rank, row]))}"
    return "it is not finite"


def _raised_at(run: Run, first: int | None, last: int | None) -> tuple[int, str] | None:
    """The step in which the training raised, and its message."""
    ended = run.manifest.ended if run.manifest is not None else None
    if ended is None or ended.how != "exception" or ended.step is None:
        return None
    if (first is not None and ended.step < first) or (last is not None and ended.step > last):
        return None
    message = clause(ended.message)
    message = message if len(message) <= _MOST_TOLD else f"{message[: _MOST_TOLD - 1]}…"
    return ended.step, f"the training raised {message}"


def _lost_rank(diagnosis: Diagnosis, step: int) -> str:
    """Which rank raised or was lost in a step: rank 0's message only says that it waited."""
    lost = (f for f in diagnosis.findings if f.rule == "lost-rank" and f.first_step == step)
    return next((finding.message for finding in lost), "")


def _root_step(diagnosis: Diagnosis, bad_step: int) -> int | None:
    """Where the diagnosis dates the growth behind a bad step; None where it sees none."""
    grown = [
        finding.first_step
        for finding in diagnosis.findings
        if finding.rule in _GROWTHS
        and finding.severity >= Severity.WARNING
        and finding.first_step < bad_step
    ]
    return min(grown, default=None)


def _root_finding(diagnosis: Diagnosis, first: int | None, last: int | None) -> Finding | None:
    index = diagnosis.verdict.root
    if index is None:
        return None
    root = diagnosis.findings[index]
    if root.rule == "broken-log":
        return None  # damage to the log says nothing of the training, which a replay can look into
    early = first is not None and root.last_step < first
    late = last is not None and root.first_step > last
    return None if early or late else root


def _audits(signals: Signals, diagnosis: Diagnosis, inside: BoolArray) -> tuple[int, ...]:
    """The steps where something other than a non-finite value may be wrong.

    First steps of findings, the worst first; where a run was resumed; the first skipped step,
    because what a loop does wrongly around its scaler shows there and nowhere else; spikes, and
    the step before each.
    """
    findings = [f for f in diagnosis.findings if f.rule not in _NO_FAULT_OF_A_STEP]
    steps = [f.first_step for f in findings if f.severity >= Severity.WARNING]
    manifest = signals.run.manifest
    if manifest is not None:
        steps += [part.start_step for part in manifest.segments if part.start_step > 0]
    skipped = np.flatnonzero(signals.skipped & inside)
    steps += [signals.step_at(int(row)) for row in skipped[:1]]
    spikes = [f.first_step for f in findings if f.rule in _SPIKES]
    steps += [step for spike in spikes for step in (spike - 1, spike)]
    allowed = set(signals.step[inside].tolist())
    kept = [step for step in dict.fromkeys(steps) if step in allowed]
    return tuple(kept[:MOST_AUDITS])
