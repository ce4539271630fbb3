"""One replayed step under the trace: where exactly the fault came in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.diagnose.bisection_result import Origin
from forensics.record.recipe import Training
from forensics.replay.call_site import Parts
from forensics.replay.changes import Changes
from forensics.replay.judgement import origin_of
from forensics.replay.replayed_step import ReplayedStep
from forensics.replay.session import AS_RECORDED, Session
from forensics.replay.step_trace import StepTrace, StepTracer


@dataclass(frozen=True, kw_only=True)
class Examination:
    """One step, run under the trace.

    Attributes:
        origin: where the fault came in; None where there is no fault.
        trace: births and damages, in order.
        replayed: what the step came to; None without a session.
    """

    origin: Origin | None
    trace: StepTrace
    replayed: ReplayedStep | None


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
    tracers: list[StepTracer] = []

    def traced(run: Callable[[], Any]) -> Any:
        tracers.append(tracer_for(session.training, session.batches))
        return tracers[0].run(run)

    replayed = session.run_step(changes=changes, trace=traced)
    return _judged(tracers[0].result(), replayed)


def examine_training(
    training: Training, run: Callable[[], Any], micro_batches: Sequence[Any] = ()
) -> Examination:
    """The same for a training without a session; what ``run`` raises is in the trace.

    Args:
        training: stands before the step.
        run: trains one step, returns its loss.
        micro_batches: what it trains on, as far as it is known.
    """
    tracer = tracer_for(training, micro_batches)
    # Whatever the user's loop raises is evidence, and is kept.
    with contextlib.suppress(Exception):
        tracer.run(run)
    return _judged(tracer.result(), None)


def tracer_for(training: Training, micro_batches: Sequence[Any]) -> StepTracer:
    """A tracer of one step of a training."""
    extra = list(training.extra.items())
    if training.ema is not None:
        extra.insert(0, ("ema", training.ema))
    return StepTracer(
        training.model,
        optimizers=training.optimizers,
        micro_batches=micro_batches,
        extra=extra,
        parts=Parts.of(training.model, training.optimizers, training.schedulers, training.ema),
    )


def _judged(trace: StepTrace, replayed: ReplayedStep | None) -> Examination:
    return Examination(origin=origin_of(trace), trace=trace, replayed=replayed)
