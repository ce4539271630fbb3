"""The step of several ranks in one trace: what others saw of it, and what the reduction made.

Each rank's forward and backward is traced where it runs. Their births and damages come together in
the trace that goes on behind the reduction: clip and optimizer are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from forensics.replay.op_trace import Birth
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.step_trace import Damage, StepTrace, StepTracer, grad_norm
from forensics.replay.tracing.tensor_stats import float_tensors, nonfinite_kind, stats_of

REDUCTION = "c10d.allreduce"
"""The operator that adds up the gradients of all ranks."""


def take_in(tracer: StepTracer, others: Sequence[StepTrace]) -> None:
    """Let a trace go on from what other ranks saw of their own part of the step.

    Args:
        tracer: of the step under way.
        others: in the order of their ranks.
    """
    for other in others:
        trace, seen = tracer.trace, tracer.seen
        births, masks = len(trace.births), len(trace.masks)
        trace.births += [_moved_birth(birth, births) for birth in other.births]
        trace.masks += other.masks
        trace.readers |= {index + masks: reader for index, reader in other.readers.items()}
        moved = [_moved(damage, births, masks) for damage in other.damages]
        tracer.other_losses += [damage for damage in moved if damage.place == "loss"]
        seen.damages += [damage for damage in moved if damage.place == "gradient"]
        seen.arrival += other.arrival


def reduced(
    tracer: StepTracer, parameters: Sequence[Tensor], sums: Sequence[Tensor | None]
) -> None:
    """Take note of the reduced gradients: they are what arrived, and descend from the ranks' own.

    Args:
        tracer: of the step under way; it must not be looking.
        parameters: whose gradients they are.
        sums: the reduced gradients, in the same order; None where there is none.
    """
    seen = tracer.seen
    names = {id(p): name for name, p in tracer.model.named_parameters()}
    for parameter, total in zip(parameters, sums, strict=True):
        name = names.get(id(parameter))
        if name is None or total is None:
            continue
        seen.arrived[name] = grad_norm(total)
        for values in float_tensors(total):  # of a sparse one the values
            if kind := nonfinite_kind(values):
                _descends(tracer, name, values, kind)
    seen.restarted = False  # each rank's gradients were taken away, and came back as the sum


def _descends(tracer: StepTracer, name: str, total: Tensor, kind: str) -> None:
    """A bad sum: of a rank's bad gradient, or of finite ones that overflow."""
    trace, seen = tracer.trace, tracer.seen
    own = [d for d in seen.damages if d.place == "gradient" and d.name == name]
    if not own:
        stats = stats_of(total)
        birth = Birth(
            kind=kind,
            operator=REDUCTION,
            phase=Phase.BACKWARD,
            output=stats,
            parameter=name,
            direct=True,
        )
        index = trace.record(birth)
        trace.descend(total, index)
        seen.damages.append(
            Damage(place="gradient", name=name, kind=kind, birth=index, stats=stats)
        )
        return
    index_of_own = next((d.birth for d in own if d.birth is not None), None)
    if index_of_own is not None:
        trace.descend(total, index_of_own)


def _moved_birth(birth: Birth, by: int) -> Birth:
    return birth if birth.parent is None else replace(birth, parent=birth.parent + by)


def _moved(damage: Damage, births: int, masks: int) -> Damage:
    return replace(
        damage,
        birth=None if damage.birth is None else damage.birth + births,
        mask=None if damage.mask is None else damage.mask + masks,
    )
