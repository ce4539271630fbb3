"""One replayed step under the trace: where exactly the fault came in.

Damage decides. What is non-finite and does damage is traced to the operator that made it; what a
scaler absorbed is no fault; and where nothing is non-finite, what was applied is held against what
should have been.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from forensics.diagnose.bisection_result import FaultKind, Origin
from forensics.record.recipe import Training
from forensics.replay.applied.average_look import AverageLook
from forensics.replay.applied.checks import BEFORE_NORM, SKIP_CHECKS, first_fault
from forensics.replay.applied.coverage import whose_rate
from forensics.replay.applied.gradient_check import GradientWatch, gradient_origin
from forensics.replay.applied.scaling import (
    hidden_skip,
    scale_link,
    shared_scaler,
    step_past_the_scaler,
)
from forensics.replay.applied.step_watch import StepEvents, StepWatch
from forensics.replay.applied.updates import rate_behind, undivided
from forensics.replay.rerun.changes import Changes
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import AS_RECORDED, Session
from forensics.replay.tracing.call_site import Parts, Phase
from forensics.replay.tracing.judgement import norm_origin, origin_of, raised_origin
from forensics.replay.tracing.overflow import absorbed
from forensics.replay.tracing.step_facts import Context, StartOfStep, StepFacts
from forensics.replay.tracing.step_trace import StepTrace, StepTracer, as_number

_NO_HOOKS = "saved tensor hooks"
"""What torch.func says where the hooks on saved tensors are in its way: the step itself is fine."""
_RISE = 0.1
"""Share of itself by which a loss must have risen: less is the noise of a batch."""
_Seen = tuple[StepTrace, StepEvents, StartOfStep, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """One step, run under the trace.

    Attributes:
        origin: where the fault came in; None where there is no fault.
        absorbed: why something non-finite in the step is no fault; empty where there was none.
        facts: what the step called and made, and what was known before.
        replayed: what the step came to; None without a session.
    """

    origin: Origin | None
    absorbed: str
    facts: StepFacts
    replayed: ReplayedStep | None

    @property
    def trace(self) -> StepTrace:
        """Births and damages of the step."""
        return self.facts.trace

    @property
    def events(self) -> StepEvents:
        """What the step called."""
        return self.facts.events


def examine_step(session: Session, *, changes: Changes = AS_RECORDED) -> Origin | None:
    """The origin of what goes wrong in the session's next step; see ``examine``."""
    return examine(session, changes=changes).origin


def examine(session: Session, *, changes: Changes = AS_RECORDED) -> Examination:
    """Run the session's next step under the operator trace, and say where its fault came in.

    The trace changes no bit of the step; the session stands after it. Nothing is put back.

    Args:
        session: stands before the step.
        changes: what to do otherwise than the record.

    Raises:
        NotReplayableError: a change cannot be made here.
    """
    return _examine(session, changes, None)


def _examine(session: Session, changes: Changes, watch: GradientWatch | None) -> Examination:
    found: list[_Seen] = []
    context = context_of(session, session.step_index)

    def traced(run: Callable[[], Any]) -> Any:
        with watch.watching(session.model) if watch else contextlib.nullcontext():
            return _traced(session.training, run, session.batches, found)

    replayed = session.run_step(changes=changes, trace=traced)
    return _judged(session.training, found[0], len(session.batches), context, replayed)


def examine_training(
    training: Training,
    run: Callable[[], Any],
    micro_batches: Sequence[Any] = (),
    *,
    context: Context | None = None,
) -> Examination:
    """The same for a training without a session; what ``run`` raises is in the trace.

    Args:
        training: stands before the step.
        run: trains one step, returns its loss.
        micro_batches: what it trains on, as far as it is known.
        context: what is known of the steps before.
    """
    found: list[_Seen] = []
    # Whatever the user's loop raises is evidence, and is kept.
    with contextlib.suppress(Exception):
        _traced(training, run, micro_batches, found)
    return _judged(training, found[0], len(micro_batches), context or Context(), None)


def behind_growth(session: Session, origin: Origin, step: int) -> Origin:
    """What makes it grow, where a step before shows that what was applied is wrong.

    The newest saved state before the bad step is examined: a loop that applies the wrong thing
    does so in every step. The session is left there.

    Args:
        session: anywhere.
        origin: of the bad step, which ends a growth.
        step: the bad step.

    Returns:
        The fault of what was applied, with the given origin as its end; else the given one.
    """
    session.go_to(max(step - 1, 0))
    cause = examine_step(session)
    if cause is None or cause.kind is not FaultKind.APPLIED:
        return origin
    ends = f"{cause.summary[:-1]}; in the end {origin.summary}"
    chain = (*cause.chain, *origin.chain)
    return replace(cause, kind=FaultKind.GROWTH, chain=chain, summary=ends)


def audit_step(session: Session, *, before: MemoryState | None = None) -> Origin | None:
    """Is the session's next step right, though nothing in it is non-finite? See ``audit``."""
    return audit(session, before=before).origin


def audit(session: Session, *, before: MemoryState | None = None) -> Examination:
    """Examine the next step, and check its gradients by recomputing them where that is due.

    The session stands after the step. The step is run once, and twice more where it recomputes
    activations or edits what it saved.

    Args:
        session: stands before the step.
        before: its captured state, if there is one already.
    """
    held = before or session.capture()
    actual = _watched(session)
    examined = _examine(session, AS_RECORDED, actual)
    raised = examined.trace.raised
    if raised is not None and _NO_HOOKS in raised.message:
        session.restore(held)
        return _examine(session, AS_RECORDED, None)
    if examined.origin is not None or examined.absorbed or not actual.suspicious:
        return examined
    session.restore(held)
    sound = _watched(session, sound=True)
    session.run_step(trace=_under(session, sound))
    session.restore(held)
    session.run_step()
    sizes = {name: p.numel() for name, p in session.model.named_parameters()}
    return replace(examined, origin=gradient_origin(actual, sound, sizes))


def _watched(session: Session, *, sound: bool = False) -> GradientWatch:
    return GradientWatch.of(session.model, _parts(session.training), sound=sound)


def _under(session: Session, watch: GradientWatch) -> Callable[[Callable[[], Any]], Any]:
    def traced(run: Callable[[], Any]) -> Any:
        with watch.watching(session.model):
            return run()

    return traced


def context_of(session: Session, step: int) -> Context:
    """What the record says around a step."""
    row, before = session.recorded(step) or {}, session.recorded(step - 1) or {}
    steps = session.run.steps
    earlier = steps.step < step
    rates = steps["lr"][steps.present("lr")] if "lr" in steps else np.zeros(0)
    peak = float(np.nanmax(rates, initial=0.0))
    rate = row.get("lr")
    return Context(
        step=step,
        threshold=session.manifest.max_norm,
        scale_before=before.get("scaler_scale"),
        taken_before=None if before.get("skipped") is None else not before["skipped"],
        trained="skipped" in steps and bool(np.any(steps["skipped"][earlier] == 0)),
        resumed=any(step == segment.start_step for segment in session.manifest.segments),
        rate_share=rate / peak if isinstance(rate, float) and peak > 0 else 1.0,
        steps=session.config.steps,
        rises=_rises(session),
    )


def _rises(session: Session) -> bool:
    """Is the median loss of the run's last tenth clearly above that of its first one?"""
    steps = session.run.steps
    loss = steps["loss"][steps.present("loss")] if "loss" in steps else np.zeros(0)
    tenth = len(loss) // 10
    if not tenth:
        return False
    first, last = float(np.median(loss[:tenth])), float(np.median(loss[-tenth:]))
    return last > first + _RISE * abs(first)


def _traced(
    training: Training,
    run: Callable[[], Any],
    micro_batches: Sequence[Any],
    found: list[_Seen],
) -> Any:
    """Run the step under trace and watch; what they saw is kept even where it raises."""
    parts = _parts(training)
    extra = list(training.extra.items())
    if training.ema is not None:
        extra.insert(0, ("ema", training.ema))
    start = StartOfStep.of(training)
    tracer = StepTracer(
        training.model,
        optimizers=training.optimizers,
        micro_batches=micro_batches,
        extra=extra,
        parts=parts,
    )
    watch = StepWatch(parts, measure=True, owners=training.optimizers)
    losses: list[Any] = []
    try:
        with watch.watching(), _noting_losses(training, losses):
            return tracer.run(run)
    finally:
        found.append((tracer.result(), watch.events, start, tuple(map(as_number, losses))))


@contextlib.contextmanager
def _noting_losses(training: Training, losses: list[Any]) -> Iterator[None]:
    """Keep what the training's own loss function gives while the context lasts."""
    own = training.loss

    def noting(*args: Any, **kwargs: Any) -> Any:
        loss = own(*args, **kwargs)
        losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
        return loss

    training.loss = noting
    try:
        yield
    finally:
        training.loss = own


def _parts(training: Training) -> Parts:
    return Parts.of(training.model, training.optimizers, training.schedulers, training.ema)


def _judged(
    training: Training,
    found: _Seen,
    micro_batches: int,
    context: Context,
    replayed: ReplayedStep | None,
) -> Examination:
    trace, events, start, losses = found
    facts = StepFacts(
        training=training,
        trace=trace,
        events=events,
        start=start,
        micro_batches=micro_batches,
        losses=losses,
        context=context,
        average=AverageLook.of(training),
    )
    origin, why = judge(facts)
    clause = undivided(facts)
    if clause and origin is not None and origin.kind in (FaultKind.INF, FaultKind.NORM_OVERFLOW):
        origin = replace(origin, summary=f"{origin.summary[:-1]}; {clause}.")
    return Examination(origin=origin, absorbed=why, facts=facts, replayed=replayed)


def judge(facts: StepFacts) -> tuple[Origin | None, str]:
    """The origin of a traced step, and why what was non-finite in it is no fault."""
    origin = origin_of(facts.trace)
    if origin is None:
        return first_fault(facts, BEFORE_NORM) or norm_origin(facts) or first_fault(facts), ""
    why = absorbed(facts)
    if why and facts.trace.raised:
        return raised_origin(facts.trace.raised), ""
    if why and facts.taken:
        return shared_scaler(facts) or origin, ""
    if why:
        reset = scale_link(facts)
        if reset is None:
            return first_fault(facts, SKIP_CHECKS), why
        grown = f"{origin.summary[:-1]}; the loss scale was reset ({reset.name})."
        return replace(origin, chain=(reset, *origin.chain), summary=grown), ""
    if origin.phase == Phase.OPTIMIZER:
        return step_past_the_scaler(facts) or whose_rate(facts, rate_behind(facts, origin)), ""
    hidden = hidden_skip(facts)
    if hidden is not None:
        return replace(hidden, chain=(*origin.chain, *hidden.chain)), ""
    return origin, ""
