"""One rank ended, or hangs, where the others wait for it.

What it detects
    In the marks of a run of several ranks: a rank that is behind the others in step or stage,
    while it has raised, or the others have, or have waited for it for longer than 60 seconds and
    20 steps. A rank that raised of a connection that another one has left was waiting for that
    one, wherever it stood. One finding, about the rank that is furthest behind.

Why it matters
    The ranks that wait look as dead as the one they wait for, and it is they who raise: a closed
    connection, a timeout of the reduction. Where the run stopped is the other rank's to tell.

Evidence
    The last step and stage of every rank, and how long the waiting ones waited.

Silent when
    The run finished or was interrupted, all ranks stand at the same place, or none is known to
    have waited: an info then says where each was when all were cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import clause, counted, number
from forensics.frozen import dataclass
from forensics.runlog.rank_files import RankMark, Stage

_WHERE = {
    Stage.OWN: "in its own part of step {step} (data, forward or backward)",
    Stage.REDUCTION: "in the reduction of step {step}",
    Stage.REDUCED: "after the reduction of step {step} (clip, optimizer or logging)",
}
_PLACE = {
    Stage.OWN: "in its own part",
    Stage.REDUCTION: "in the reduction",
    Stage.REDUCED: "past the reduction",
}
_LEFT = ("closed by peer", "reset by peer", "gloo/transport", "remote process exited")
"""What gloo and NCCL say of a connection whose other end is gone."""
_ENDED_WELL = ("finished", "interrupted", "alarm")


@dataclass(frozen=True)
class Thresholds:
    """How long a wait is no waiting for a slow batch any more."""

    waited: float = threshold(60, "seconds; a batch, a checkpoint or its sync take less")
    steps: float = threshold(20, "median steps; a slow step of a slow run is no hang")
    long: float = threshold(300, "seconds, half of NCCL's default timeout: error, not warning")


@rule(thresholds=Thresholds, parts=("rank_marks",))
def lost_rank(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding about the rank that the others wait for."""
    marks = [mark for mark in signals.run.rank_marks if mark.ended not in _ENDED_WELL]
    manifest = signals.run.manifest
    ended = manifest.ended if manifest is not None else None
    if len(marks) < 2 or (ended is not None and ended.how in _ENDED_WELL):
        return
    if ended is not None:  # a launcher may kill rank 0 between run.json and its own mark
        marks = [
            replace(m, ended=ended.how, message=ended.message) if not (m.rank or m.ended) else m
            for m in marks
        ]
    behind = min(marks, key=_place)
    waiting = [m for m in marks if _waits(m) and _place(m) > _place(behind)]
    if not waiting:
        return
    waited = max(mark.there_s for mark in waiting)
    usual = _step_time(signals)
    hangs = waited >= max(thresholds.waited, thresholds.steps * usual)
    raised = any(mark.ended for mark in (behind, *waiting))
    severity = Severity.INFO
    if raised or (hangs and waited >= thresholds.long):
        severity = Severity.ERROR
    elif hangs:
        severity = Severity.WARNING
    elif signals.run.unfinished:
        return  # ranks of a run that goes on are never quite at the same place
    yield _finding(marks, behind, waiting, severity, waited if hangs else None)


def _place(mark: RankMark) -> tuple[int, int, bool]:
    """Where a rank is; at the same stage those that were left are ahead."""
    return (*mark.place, _was_left(mark))


def _waits(mark: RankMark) -> bool:
    return mark.stage is Stage.REDUCTION or _was_left(mark)


def _was_left(mark: RankMark) -> bool:
    """Did it raise because another rank was gone?"""
    return bool(mark.ended) and any(left in mark.message.lower() for left in _LEFT)


def _step_time(signals: Signals) -> float:
    """Seconds of the median step; 0 where the log does not tell."""
    times = np.diff(signals.column("time_s"))
    known = times[np.isfinite(times) & (times > 0)]
    return float(median(known)) if len(known) else 0.0


def _finding(
    marks: Sequence[RankMark],
    behind: RankMark,
    waiting: Sequence[RankMark],
    severity: Severity,
    waited: float | None,
) -> Finding:
    where = _WHERE[behind.stage].format(step=f"{behind.step:,}")
    others = (
        f"rank {waiting[0].rank} waited"
        if len(waiting) == 1
        else f"{counted(len(waiting), 'other rank')} waited"
    )
    if waited is not None:
        others += f" for {number(waited)} seconds"
    reduction = " in the reduction" if waiting[0].stage is Stage.REDUCTION else ""
    named, step = f"rank {behind.rank}", f"{behind.step:,}"
    if behind.ended:
        how = clause(behind.message)
        awaited = "its gradients" if reduction else "it"
        message = f"{named} raised at step {step}: {how}; {others} for {awaited}"
        cause = "What it raised. The errors of the other ranks are of the connection it left."
        remedy = f"Look at the log of {named}, at the samples it had at step {step} first."
    elif severity is Severity.INFO:
        message = f"the run was cut off with {named} {where} while {others}{reduction}"
        cause = f"If one rank died by itself (memory, a signal, its machine), it was {named}."
        remedy = f"Look at the system log of the machine of {named} for a killed process."
    else:
        message = f"{named} fell silent {where}; {others}{reduction}"
        cause = "It was killed (memory, a signal, its machine), or hangs: a data loader, a lock, "
        cause += "or a collective that only some ranks call."
        if any(map(_was_left, waiting)):
            cause += " The errors of the other ranks are of the connection it left."
        remedy = f"Look at the machine of {named} for a killed process; where it still runs, "
        remedy += "`py-spy dump --pid` shows the line it hangs in."
    return Finding(
        rule="lost-rank",
        severity=severity,
        message=message,
        first_step=behind.step,
        last_step=behind.step,
        subject=named,
        evidence=tuple(
            Evidence(
                signal=f"seconds that rank {mark.rank} was {_PLACE[mark.stage]}",
                steps=(mark.step,),
                values=(round(mark.there_s, 1),),
            )
            for mark in (behind, *waiting[:2])
        ),
        cause=cause,
        remedy=remedy,
    )
