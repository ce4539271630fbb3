"""Nothing is bad in the log and in the saved states: is what was applied right?"""

from __future__ import annotations

from forensics.diagnose.bisection_result import (
    BisectStatus,
    Departure,
    FaultKind,
    Origin,
    Persistence,
)
from forensics.replay.another_training import another, is_another
from forensics.replay.bisection_answer import outside_origin
from forensics.replay.case import Case
from forensics.replay.detection import Detector, Passage
from forensics.replay.growth import growth_of
from forensics.replay.proof.flip import find_hit
from forensics.replay.proof.lost_on_resume import find_lost, lost_origin
from forensics.replay.session import Session
from forensics.replay.silent_faults import SilentFault, SilentSearch
from forensics.replay.sweep import is_affordable, sweep
from forensics.replay.tracing.step_forensics import audit_step
from forensics.replay.trainers.trainer_session import TrainerSession

MOST_SUSPECTS = 3
"""Suspected steps of a whole replay that are audited; what lasts was found in the first state."""


def silent_inquiry(case: Case, session: Session) -> None:
    """Nothing is bad in the log and in the states: is what was applied right?"""
    search = SilentSearch(session=session, progress=case.progress)
    fault = search.find(_worth_a_look(case, session))
    case.sound = search.sound
    case.notes += search.notes
    if fault is None and isinstance(session, TrainerSession) and session.never_as_recorded:
        _of_another(case, session.never_as_recorded)
    elif fault is not None:
        if _is_of_the_record(case, session, fault.step):
            _silently_located(case, session, fault)
    elif (
        case.suspicion.root is None
        and not case.options.from_step
        and is_affordable(case.run, _last_trained(case, session))
    ):
        _sweep(case, session, search)
    else:
        nothing_found(case)


def _of_another(case: Case, gone: Departure) -> None:
    """Nothing is wrong in what is another training: what that applied is none of the record's."""
    case.sound = []
    case.notes.append(another(gone))
    nothing_found(case)


def _worth_a_look(case: Case, session: Session) -> list[int]:
    """Steps to look into: the first and the last state, and what the log points at."""
    first = case.options.from_step or 0
    last = case.last_step(session)
    ends = [first, max(state for state in session.states() if state <= last)]
    return [step for step in (*ends, *case.suspicion.audits) if first <= step <= last]


def _is_of_the_record(case: Case, session: Session, step: int) -> bool:
    """Is the way to a step the record? Where a trainer's is not, the case is told so."""
    if not isinstance(session, TrainerSession):
        return True
    session.go_to(step)
    passage = Detector(session, case.judge, deep=False).run(step)
    if passage.departure is None:
        return True
    case.take(passage)
    case.sound = []
    case.went_its_own_way(session, passage, passage.departure)
    return False


def _silently_located(case: Case, session: Session, fault: SilentFault) -> None:
    case.found.update(
        status=BisectStatus.LOCATED,
        reason=f"{case.looked_at(sound=False)}; what single steps applied was checked",
        first_bad_step=fault.step,
        root_step=fault.step,
        origin=fault.origin,
    )
    case.prove(session, fault.before, None, fault.origin, audit=audit_step)


def _sweep(case: Case, session: Session, search: SilentSearch) -> None:
    """Replay every step: one in the middle may have applied the wrong thing."""
    last = _last_trained(case, session)
    passage, suspects = sweep(session, case.judge, last, case.on_step)
    case.take(passage)
    for step in suspects[:MOST_SUSPECTS]:
        fault = search.look_into(step)
        if fault is not None:
            _silently_located(case, session, fault)
            return
    if passage.bad is not None and passage.before is not None:
        case.found["reason"] = f"step {passage.bad.step:,} goes bad in the replay"
        case.located(session, passage)
    else:
        _swept(case, session, passage)


def _last_trained(case: Case, session: Session) -> int:
    """The last step that left a row or led to a saved state: a log may have lost its end."""
    last, rows = case.last_step(session), case.run.steps
    if not len(rows):
        return last
    saved = max((info.step - 1 for info in case.run.checkpoints), default=0)
    return min(last, max(int(rows.step[-1]), saved))


def _swept(case: Case, session: Session, passage: Passage) -> None:
    """No step of the replay is bad; is it the record?"""
    gone = passage.departure
    if gone is not None and is_another(session, gone, passage.first):
        _of_another(case, gone)
        return
    lost = None if gone is None else find_lost(session, gone.step)
    if lost is not None:
        case.found.update(
            status=BisectStatus.LOCATED,
            reason=f"{case.looked_at(sound=False)}; the replay is not the record",
            first_bad_step=lost.step,
            root_step=lost.step,
            reproduces=False,
            replays=1,
            persistence=Persistence.TRANSIENT,
            origin=lost_origin(lost),
        )
        return
    hit = find_hit(session, gone.step) if gone is not None and not session.tolerance else None
    if gone is None or hit is None or hit.bit is None:
        nothing_found(case)
        return
    case.found.update(
        status=BisectStatus.LOCATED,
        reason=f"{case.looked_at(sound=False)}; the replay is not the record",
        first_bad_step=hit.state,  # it computed with the changed value, and the next row shows it
        root_step=hit.state,
        reproduces=False,
        replays=1,
        persistence=Persistence.TRANSIENT,
        origin=outside_origin(hit, gone, gone.step, session.recorded(gone.step) or {}),
    )


def nothing_found(case: Case) -> None:
    """Healthy, unless the report says otherwise of the run."""
    root, reason = case.suspicion.root, case.looked_at()
    if root is None and not len(case.run.steps) and "replayed_from" not in case.found:
        reason += ", and there is no log: what became good again between two states is unknown"
        case.found.update(status=BisectStatus.NOT_BISECTABLE, reason=reason)
        return
    if root is None:
        case.found.update(status=BisectStatus.HEALTHY, reason=reason)
        return
    told = f"the report's root is {root.rule}, from step {root.first_step:,} on"
    growth = growth_of(case.run, root.last_step, None)
    if growth is None:
        case.found.update(
            status=BisectStatus.NOT_BISECTABLE, reason=f"{reason}. But {told}: {root.message}"
        )
        return
    case.found.update(
        status=BisectStatus.LOCATED,
        reason=f"{reason}; but {told}",
        first_bad_step=root.first_step,
        root_step=growth.since_step,
        growth=growth,
        origin=Origin(
            kind=FaultKind.GROWTH,
            phase="",
            operator="growth",
            summary=f"Nothing has overflowed yet. {root.message}.",
        ),
    )
