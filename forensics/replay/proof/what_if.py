"""What if it were done otherwise? One change at a time, each tried by replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from forensics.diagnose.bisection_result import FaultKind, Origin, WhatIf
from forensics.errors import NotReplayableError
from forensics.record.assembly import told as in_a_line
from forensics.replay.proof.coming_again import without_them_later
from forensics.replay.proof.trial_plans import (
    WITHOUT_SAMPLES,
    Plan,
    as_it_was,
    early_plans,
    plans,
    precisions,
)
from forensics.replay.rerun.changes import Changes
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session
from forensics.replay.suspects import IN_THE_ROW, IsBad, any_bad, place_of
from forensics.replay.tracing.operator_advice import is_lost_to_rounding
from forensics.replay.tracing.step_forensics import examine_step

FURTHER_STEPS = 50
"""Steps after the bad one that a change must carry the run on for, by default."""

_STARTS = 3
"""Saved states, newest first, that are tried as a start."""

APPLIED_STEPS = 3
"""Steps after it for a fault of what was applied: it shows in every step, or it is another."""
_TRACED = 10
"""Cost of a traced step in plain ones, about."""

Announce = Callable[[str], None]


def what_if(
    session: Session,
    before: MemoryState,
    *,
    samples: Sequence[int] = (),
    further_steps: int = FURTHER_STEPS,
    is_bad: IsBad = any_bad,
    announce: Announce | None = None,
) -> tuple[WhatIf, ...]:
    """Try every change that makes sense from the bad step on: precision, loss scale, data.

    A change is *finite* when the bad step and the steps after it are. Where a loss scaler is at
    work, later steps that it skips while the loss is finite and the scale above 1 are its search
    for a scale, and no fault. A trial ends at its first bad step. Where fp32 is finite, fp64 has
    nothing to add and is left out.

    Args:
        session: left after the last trial.
        before: the state just before the bad step.
        samples: the guilty ones; where there are none, the batch is left out as a whole.
        further_steps: steps to go on for; fewer where the recorded run ends before.
        is_bad: what makes a step bad.
        announce: told, before the first trial, how many there are and about how long they take.
    """
    was = as_it_was(session, before)
    step = before.step
    until = last_step(session, step, further_steps)
    chosen = list(plans(session, step, until, samples, was))
    trials = sum(not plan.refused for plan in chosen)
    _announce(announce, trials, trials * (until - step + 1), was.seconds)
    rules = _Rules(
        strict=step,
        is_bad=is_bad,
        deep=place_of(was.step) not in IN_THE_ROW,
        raises=bool(was.step.exception),
    )
    found: list[WhatIf] = []
    for plan in chosen:
        if not any(trial.finite and trial.change in plan.needless for trial in found):
            found.append(_from_here(session, before, plan, rules))
            if plan.change == WITHOUT_SAMPLES:
                anew = partial(_from_here, session, before, rules=rules)
                found[-1] = without_them_later(session, plan, found[-1], samples, anew)
    return tuple(found)


def _from_here(session: Session, before: MemoryState, plan: Plan, rules: _Rules) -> WhatIf:
    session.restore(before)
    return _try(session, plan, rules)


def what_if_from(
    session: Session,
    root_step: int,
    first_bad_step: int,
    *,
    further_steps: int = FURTHER_STEPS,
    is_bad: IsBad = any_bad,
    known_from: int | None = None,
    deep: bool = True,
    announce: Announce | None = None,
) -> tuple[WhatIf, ...]:
    """Try what must begin earlier: half the learning rate, and a clip where nothing clips.

    The training is built anew from the newest saved state at or before the root step, so a state
    in memory is not needed any more: let go of it first, for it takes as much room again. Only a
    state from which the step goes bad unchanged proves anything.

    Args:
        session: left after the last trial.
        root_step: where the growth began, else the bad step itself.
        first_bad_step: where it went bad as recorded.
        further_steps: steps to go on for after it.
        is_bad: what makes a step bad.
        known_from: a saved state that is known to lead to the bad step; it, and those before it,
            need no replay without a change.
        deep: look at the state after each step, too, not at its row alone.
        announce: as of ``what_if``.
    """
    until = last_step(session, first_bad_step, further_steps)
    chosen = list(early_plans(session, root_step, first_bad_step, until))
    rules = _Rules(strict=first_bad_step, is_bad=is_bad, deep=deep, raises=False)
    start, seconds = _start_that_goes_bad(session, root_step, first_bad_step, is_bad, known_from)
    if start is None:
        why = "cannot be tried: from a saved state the step does not go bad unchanged, either"
        return tuple(
            WhatIf(
                change=p.change, from_step=root_step, until_step=root_step, finite=None, note=why
            )
            for p in chosen
        )
    _announce(announce, len(chosen), len(chosen) * (until - start + 1), seconds)
    found: list[WhatIf] = []
    for plan in chosen:
        if any(trial.finite and trial.change in plan.needless for trial in found):
            continue
        session.go_to(start)
        found.append(_try(session, plan, rules))
    return tuple(found)


def _start_that_goes_bad(
    session: Session,
    root_step: int,
    first_bad_step: int,
    is_bad: IsBad,
    known_from: int | None,
) -> tuple[int | None, float]:
    """A saved state from which the step goes bad as recorded, and the seconds of a step.

    What a checkpoint does not hold may be part of the fault; then an earlier one is needed.
    """
    wanted = root_step
    for _ in range(_STARTS):
        start = session.go_to(wanted)
        known = known_from is not None and start <= known_from
        last = start if known else first_bad_step
        began = time.perf_counter()
        while session.step_index < last:
            session.run_step(check_state=False)
        replayed = session.run_step()
        if known or is_bad(replayed):
            return start, (time.perf_counter() - began) / (last - start + 1)
        if start == 0:
            break
        wanted = start - 1
    return None, 0.0


def what_if_applied(
    session: Session,
    before: MemoryState,
    origin: Origin,
    *,
    further_steps: int = APPLIED_STEPS,
    announce: Announce | None = None,
) -> tuple[WhatIf, ...]:
    """The same for values that were lost to rounding, where nothing is non-finite: precisions.

    Each step of a trial is traced, which costs about ten times as much. *Finite* means that the
    same is not lost again. Of other faults of what was applied the origin names the cure, and
    nothing is tried.

    Args:
        session: left after the last trial.
        before: the state just before the step.
        origin: of the fault.
        further_steps: steps to go on for after it.
        announce: as of ``what_if``.
    """
    if not is_lost_to_rounding(origin):
        return ()
    was = as_it_was(session, before)
    until = last_step(session, before.step, further_steps)
    chosen = list(precisions(until, was))
    trials = sum(not plan.refused for plan in chosen)
    _announce(announce, trials, trials * (until - before.step + 1), _TRACED * was.seconds)

    def lost_again(changes: Changes) -> tuple[int, int | None]:
        while session.step_index <= until:
            step = session.step_index
            found = examine_step(session, changes=changes)
            if found is not None and found.kind is FaultKind.EXCEPTION:
                raise NotReplayableError(f"the step fails: {found.summary}")
            if found is not None and found.operator == origin.operator:
                return step, step
        return until, None

    results: list[WhatIf] = []
    for plan in chosen:
        if not any(trial.finite and trial.change in plan.needless for trial in results):
            session.restore(before)
            results.append(_told(session.step_index, plan, lambda p: lost_again(p.changes)))
    return tuple(results)


def last_step(session: Session, first_bad_step: int, further: int) -> int:
    """The last step of a trial: not past the end of the recorded run."""
    return max(first_bad_step, min(first_bad_step + further, session.config.steps - 1))


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """How trials are judged.

    Attributes:
        strict: the bad step: in it nothing is put down to the scaler's search.
        is_bad: what makes a step bad.
        known_from: a saved state that is known to lead to the bad step; it, and those before it,
            need no replay without a change.
        deep: look at the state after each step, too.
        raises: the fault itself is an exception.
    """

    strict: int
    is_bad: IsBad
    deep: bool
    raises: bool


def _announce(announce: Announce | None, trials: int, steps: int, seconds: float) -> None:
    if announce is not None and trials:
        about = steps * seconds
        length = f"{about:.0f} s" if about < 120 else f"{about / 60:.0f} min"
        noun = "change" if trials == 1 else "changes"
        announce(f"{trials} {noun} to try: up to {steps:,} steps, about {length}")


def _try(session: Session, plan: Plan, rules: _Rules) -> WhatIf:
    """Carry a trial through."""
    if plan.skip_first:
        session.step_index += 1
    strict = (session.step_index, rules.strict)
    return _told(session.step_index, plan, lambda p: _carry_on(session, p, rules), strict)


def _told(
    start: int,
    plan: Plan,
    carry_on: Callable[[Plan], tuple[int, int | None]],
    strict: Sequence[int] | None = None,
) -> WhatIf:
    """A trial's line of the table; where the change cannot be made, it says why."""
    told = WhatIf(change=plan.change, from_step=start, until_step=start, finite=None)
    if plan.refused:
        return replace(told, note=f"cannot be tried: {plan.refused}")
    try:
        until, bad_step = carry_on(plan)
    except NotReplayableError as error:
        return replace(told, note=f"cannot be tried: {error.what}")
    finite = bad_step is None
    # What goes bad only later says nothing about what made the bad step bad.
    note = plan.finite if finite else plan.bad if bad_step in (strict or (start,)) else ""
    return replace(told, until_step=until, finite=finite, first_bad_step=bad_step, note=note)


def _carry_on(session: Session, plan: Plan, rules: _Rules) -> tuple[int, int | None]:
    """The last step that was replayed, and the bad one it ended at, or None."""
    first = session.step_index
    while session.step_index <= plan.until:
        try:
            step = session.run_step(
                changes=plan.changes,
                check_state=rules.deep or session.step_index == plan.until,
            )
        except NotReplayableError:
            raise
        except Exception as error:  # a recipe's batch() and select() raise what they like
            if session.step_index > first:
                break  # the data end here
            raise NotReplayableError(f"the data cannot be had ({in_a_line(error)})") from error
        if step.step == first:
            _check_first(session, plan, step, rules)
        searching = step.step != rules.strict and _is_scaler_search(step)
        if rules.is_bad(step) and not searching:
            return step.step, step.step
    return session.step_index - 1, None


def _check_first(session: Session, plan: Plan, step: ReplayedStep, rules: _Rules) -> None:
    """Was the change really made?

    Raises:
        NotReplayableError: the loop undid it, or raises because of it.
    """
    if step.exception and not rules.raises:
        raise NotReplayableError(f"the step raises {step.exception}")
    wanted, scaler = plan.changes.loss_scale, session.training.scaler
    if wanted is not None and scaler.get_scale() > wanted * scaler.get_growth_factor():
        raise NotReplayableError("the loop sets the loss scale itself")


def _is_scaler_search(step: ReplayedStep) -> bool:
    """A step that the loss scaler skips, and lowers its scale for."""
    places = {name.partition(":")[0] for name in step.bad}
    log = step.log
    return log is not None and log.skipped and log.scaler_scale > 1 and places <= {"grad", "norm"}
