"""What a step applied to the weights: state, gradients, rounding, and the schedule behind it.

Each check is a precise predicate on one traced step and returns the origin, or None.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin
from forensics.replay.applied.movement import rounding, state_counts
from forensics.replay.applied.step_watch import OptimizerCall
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.judgement import applied_origin
from forensics.replay.tracing.step_facts import StepFacts, module_of, schedule_moves

_LOST_UPDATES = 0.5
"""Share of a step's updates lost to rounding from which on it is a fault: more than half."""
_FULL_RATE = 0.1
"""Share of the highest learning rate below which updates may be too small to move anything."""
_PER_STEP = 0.5
"""A schedule that moved in at least this share of the steps is stepped by step, not by epoch."""


def scheduler_ahead(facts: StepFacts) -> Origin | None:
    """A schedule moved on in a step that its optimizer skipped."""
    taken = {id(call.optimizer) for call in facts.taken}
    for call in facts.events.schedulers:
        if call.optimizer is None or id(call.optimizer) in taken:
            continue
        if not facts.events.scaled_steps or not _is_per_step(facts, call.scheduler):
            continue
        return applied_origin(
            facts,
            "lr_scheduler.step",
            Phase.SCHEDULER,
            source_line=call.source_line,
            summary=(
                f"{type(call.scheduler).__name__}.step() moved the learning rate from "
                f"{_rates(call.before)} to {_rates(call.after)} in a step that the optimizer "
                f"skipped: the schedule runs ahead of the training"
            ),
        )
    return None


def scheduler_twice(facts: StepFacts) -> Origin | None:
    """A schedule moved on more than once in a step of a single micro-batch."""
    calls = facts.events.schedulers
    for call in calls:
        again = [other for other in calls if other.scheduler is call.scheduler]
        moved = {other.before for other in again} | {other.after for other in again}
        if len(again) > 1 and facts.micro_batches == 1 and len(moved) > 2:
            return applied_origin(
                facts,
                "lr_scheduler.step",
                Phase.SCHEDULER,
                source_line=again[-1].source_line,
                summary=(
                    f"{type(call.scheduler).__name__}.step() was called {len(again)} times in one "
                    f"step: the learning rate went from {_rates(call.before)} to "
                    f"{_rates(again[-1].after)}"
                ),
            )
    return None


def negative_rate(facts: StepFacts) -> Origin | None:
    """A schedule made the learning rate negative: the update climbs the loss.

    torch's optimizers refuse such a rate when they are made, so that it is nobody's intention.
    """
    for call in facts.taken:
        below = [rate for rate in call.rates if rate < 0]
        if not below:
            continue
        kinds = [type(schedule).__name__ for schedule in facts.training.schedulers]
        return applied_origin(
            facts,
            "learning rate",
            Phase.SCHEDULER,
            source_line=call.source_line,
            summary=(
                f"the learning rate is {below[0]:.4g}{f' ({kinds[0]} made it)' if kinds else ''}: "
                f"{type(call.optimizer).__name__} climbs the loss"
            ),
        )
    return None


def schedule_reset(facts: StepFacts) -> Origin | None:
    """A schedule begins anew in the middle of the run: a resume without its state."""
    now = schedule_moves(facts.training)
    for before, after, schedule in zip(
        facts.start.moves, now, facts.training.schedulers, strict=False
    ):
        if not 0 <= after < before:
            continue
        return applied_origin(
            facts,
            "resume",
            Phase.SCHEDULER,
            summary=(
                f"{type(schedule).__name__} went back from its move {before:,} to {after:,}: the "
                "learning rate follows the beginning of the schedule once more"
            ),
        )
    return None


def state_lost(facts: StepFacts) -> Origin | None:
    """The optimizer entered its step without the state that its earlier steps had made."""
    for call in facts.events.optimizers:
        held = set(call.entry)
        now = call.counts
        had = facts.start.counts.get(id(call.optimizer), {})
        lost = {key for key in had.keys() & held if now.get(key, -2.0) < had[key]}
        fresh = facts.context.trained and not had and not now and _makes_state(call)
        if not lost and not fresh:
            continue
        count = max((had[key] for key in lost), default=-1.0)
        after = f" after {count:,.0f} steps" if count > 0 else ""
        inside = bool(lost) and facts.context.resumed is False
        whose = "; the log knows of no resume here: the loop emptied it" if inside else ""
        return applied_origin(
            facts,
            "resume",
            Phase.OPTIMIZER,
            parameter=facts.largest(),
            source_line=call.source_line,
            summary=(
                f"{type(call.optimizer).__name__} entered the step without its state{after}: of "
                f"{len(held)} parameters {len(lost or held)} start again from empty moments{whose}"
            ),
        )
    return None


def gradients_kept(facts: StepFacts) -> Origin | None:
    """Gradients of the step before were not cleared: this step's were added to them."""
    if facts.context.taken_before is False or not facts.taken:
        return None
    stepped = {facts.name_of(look.parameter) for c in facts.taken for look in c.entry.values()}
    added = stepped & facts.trace.arrived.keys()  # a loop may ask for gradients without adding them
    kept = {name: norm for name, norm in facts.trace.kept.items() if norm > 0 and name in added}
    if not kept or facts.context.step == 0:
        return None
    name = max(kept, key=lambda key: kept[key])
    return applied_origin(
        facts,
        "zero_grad",
        Phase.BACKWARD,
        parameter=name,
        parameters=tuple(kept),
        summary=(
            f"gradients of an earlier step were still there as backward began, in {len(kept)} "
            f"parameters (in {name} of norm {kept[name]:.4g}): zero_grad() is missing"
        ),
    )


def underflowed(facts: StepFacts) -> Origin | None:
    """Gradients are exactly 0 because a backward operator lost its result in half precision."""
    if not facts.trace.underflows:
        return None
    zero = [name for name in dict.fromkeys(facts.trace.arrival) if not facts.trace.arrived[name]]
    if not zero:
        return None
    lost = facts.trace.underflows[0]
    sizes = {name: p.numel() for name, p in facts.training.model.named_parameters()}
    layer = module_of(zero[0])
    name = max((n for n in zero if module_of(n) == layer), key=lambda n: sizes.get(n, 0))
    least = torch.finfo(getattr(torch, lost.output.dtype)).smallest_normal
    at = f" of {lost.module}" if lost.module else ""
    return applied_origin(
        facts,
        lost.operator,
        Phase.BACKWARD,
        node=lost.autograd_node,
        parameter=name,
        parameters=tuple(zero),
        module=layer,
        source_line=lost.source_line,
        summary=(
            f"{lost.autograd_node}{at} lost its result: at most {lost.exact:.2g} in float32, it is "
            f"0 in {lost.output.dtype} (normal numbers begin at {least:.2g}); the gradients of "
            f"{len(zero)} of {len(facts.trace.arrived)} parameters are exactly 0"
        ),
    )


def rounded_away(facts: StepFacts) -> Origin | None:
    """Half-precision parameters did not move: their updates were rounded away."""
    if facts.context.rate_share < _FULL_RATE:
        return None
    found = [r for call in facts.taken for r in rounding(call.entry, call.left)]
    expected = sum(r.expected for r in found)
    unmoved = sum(r.unmoved for r in found)
    if not expected or unmoved < _LOST_UPDATES * expected:
        return None
    worst = max(found, key=lambda r: r.unmoved)
    name = facts.name_of(worst.parameter)
    names = [facts.name_of(r.parameter) for r in found if r.unmoved >= _LOST_UPDATES * r.expected]
    dtype = str(worst.parameter.dtype).removeprefix("torch.")
    return applied_origin(
        facts,
        "optimizer rounding",
        Phase.OPTIMIZER,
        parameter=name,
        parameters=tuple(n for n in names if n),
        module=module_of(name),
        source_line=facts.taken[0].source_line,
        summary=(
            f"{unmoved / expected:.0%} of the updates were rounded away: {name} is {dtype}, whose "
            f"spacing there is {worst.ulp:.2g}, and its largest update is {worst.largest:.2g}"
        ),
    )


def undivided(facts: StepFacts) -> str:
    """A clause where each micro-batch's whole loss went into backward; empty where none did."""
    count, roots, losses = facts.micro_batches, facts.trace.roots, facts.losses
    if count < 2 or not len(roots) == len(losses) == count or not _are_summed(facts):
        return ""
    pairs = [(r, facts.scale * x) for r, x in zip(roots, losses, strict=True) if math.isfinite(r)]
    if not pairs or not all(math.isclose(r, x, rel_tol=1e-3) for r, x in pairs):
        return ""
    return (
        f"the losses of {count} micro-batches are not divided by {count}, so that gradients are "
        f"{count} times those of their mean"
    )


def _are_summed(facts: StepFacts) -> bool:
    """Did the optimizer get the gradients as they came, rather than averaged by hand?"""
    if facts.trace.restarted or not facts.events.optimizers:
        return False
    looks = [look for call in facts.events.optimizers for look in call.entry.values()]
    got = math.hypot(*(look.grad_l2 for look in looks))
    fused = any(call.found_inf is not None for call in facts.events.optimizers)
    came = facts.arrived() / (1.0 if fused else facts.scale)
    norms = [float(clip.norm) for clip in facts.events.clips]
    if not all(map(math.isfinite, norms)):
        return True  # clipped by an infinite norm: what came is all that is known
    clipped = [c.max_norm for c in facts.events.clips if c.max_norm < float(c.norm)]
    return any(math.isclose(got, size, rel_tol=1e-3) for size in (came, *clipped))


def rate_behind(facts: StepFacts, origin: Origin) -> Origin:
    """The origin in the optimizer, with the non-finite learning rate that is behind it."""
    for call in facts.events.optimizers:
        bad = [rate for rate in call.rates if not math.isfinite(rate)]
        if not bad:
            continue
        kinds = [type(s).__name__ for s in facts.training.schedulers]
        kind = "nan" if math.isnan(bad[0]) else "inf"
        by = ChainLink(phase=str(Phase.SCHEDULER), what="learning rate", kind=kind)
        whose = f" ({kinds[0]} made it)" if kinds else ""
        return replace(
            origin,
            chain=(replace(by, name=kinds[0] if kinds else ""), *origin.chain),
            summary=(
                f"the learning rate is {bad[0]:g}{whose}: {origin.operator} applied it to "
                f"gradients that are finite, and {origin.parameter or 'the weights'} became "
                f"{'NaN' if origin.kind is FaultKind.NAN else 'Inf'}."
            ),
        )
    return origin


def _is_per_step(facts: StepFacts, scheduler: object) -> bool:
    """Is the schedule stepped by step, rather than at the end of each epoch?"""
    moves = getattr(scheduler, "last_epoch", None)
    if facts.context.step is None or not isinstance(moves, int):
        return True
    return moves >= _PER_STEP * (facts.context.step + 1)


def _makes_state(call: OptimizerCall) -> bool:
    return bool(state_counts(call.optimizer))


def _rates(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in dict.fromkeys(rates)) or "?"
