"""What a step applied, against what it should have: faults with nothing non-finite in them.

Each check is a precise predicate on one traced step and returns the origin, or None. What a sound
loop does is no fault: a skip while the loss scale finds its place, a gradient that is None, a clip
that does not engage, a rate of 0 in the first step of a warm-up, a frozen parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin
from forensics.replay.call_site import Phase
from forensics.replay.movement import rounding, state_counts
from forensics.replay.step_facts import StepFacts, module_of
from forensics.replay.step_watch import ClipCall, OptimizerCall

_ENGAGED = 0.999
"""A clip that leaves more of the norm than this did not engage."""
_EFFECTIVE = 1 / 64
"""Thresholds below this, after unscaling, are nobody's intention: those in use are 0.1 to 10."""
_USUAL = 100.0
"""Thresholds above this were multiplied by the loss scale on purpose."""
_LOST_UPDATES = 0.5
"""Share of a step's updates lost to rounding from which on it is a fault: more than half."""
_FULL_RATE = 0.1
"""Share of the highest learning rate below which updates may be too small to move anything."""
_PER_STEP = 0.5
"""A schedule that moved in at least this share of the steps is stepped by step, not by epoch."""

Check = Callable[[StepFacts], Origin | None]


def first_fault(facts: StepFacts, checks: tuple[Check, ...] | None = None) -> Origin | None:
    """The first check that finds a fault.

    Args:
        facts: of a step.
        checks: those to make; by default all.
    """
    found = (check(facts) for check in checks or CHECKS)
    return next((origin for origin in found if origin is not None), None)


def clip_of_scaled_gradients(facts: StepFacts) -> Origin | None:
    """The clip saw gradients that were still multiplied by the loss scale."""
    scale = facts.scale
    for clip in facts.events.clips:
        if not clip.scaled or scale <= 1 or not _engaged(clip):
            continue
        effective = clip.max_norm / scale
        if not _is_unintended(facts, clip, effective):
            continue
        norm = float(clip.norm) / scale
        return _origin(
            facts,
            "clip",
            Phase.CLIP,
            parameter=facts.largest(),
            source_line=clip.source_line,
            summary=(
                f"the clip saw gradients still multiplied by the loss scale of {scale:,.0f}: their "
                f"norm of {norm:.4g} was cut to {effective:.3g} instead of "
                f"{min(norm, clip.max_norm):.4g}"
            ),
        )
    return None


def step_past_the_scaler(facts: StepFacts) -> Origin | None:
    """``optimizer.step()`` was called on gradients that nothing had unscaled."""
    scale = facts.scale
    for call in facts.events.optimizers:
        if scale in (0.0, 1.0) or call.scaler is not None or call.unscaled:
            continue
        norm = math.hypot(*(look.grad_l2 for look in call.entry.values()))
        names = [facts.name_of(look.parameter) for look in call.entry.values()]
        came = math.hypot(*(facts.trace.arrived.get(name, 0.0) for name in names))
        if not came or norm < came / math.sqrt(scale) or not _is_same(facts, call, norm, came):
            continue  # unscaled by hand
        largest = max(call.entry.values(), key=lambda look: look.grad_l2)
        name = facts.name_of(largest.parameter)
        return _origin(
            facts,
            "optimizer",
            Phase.OPTIMIZER,
            parameter=name,
            module=module_of(name),
            source_line=call.source_line,
            summary=(
                f"optimizer.step() was called past the scaler: the gradients of norm {norm:.4g} "
                f"are still multiplied by the loss scale of {scale:,.0f}, and nothing is skipped"
            ),
        )
    return None


def hidden_skip(facts: StepFacts) -> Origin | None:
    """A fused optimizer was called and skipped inside, and something counts it as a step."""
    for call in facts.events.optimizers:
        counts = _user_hooks(call)
        if not call.skipped_inside or not counts:
            continue
        kernel = f"_fused_{type(call.optimizer).__name__.lower()}_"
        return _origin(
            facts,
            kernel,
            Phase.OPTIMIZER,
            parameter=facts.largest(),
            source_line=call.source_line,
            summary=(
                f"{type(call.optimizer).__name__}(fused=True).step() was called, and its kernel "
                f"skipped the step inside (found_inf is 1): {counts} saw a step that moved nothing"
            ),
        )
    return None


def scheduler_ahead(facts: StepFacts) -> Origin | None:
    """A schedule moved on in a step that its optimizer skipped."""
    taken = {id(call.optimizer) for call in facts.taken}
    for call in facts.events.schedulers:
        if call.optimizer is None or id(call.optimizer) in taken:
            continue
        if not facts.events.scaled_steps or not _is_per_step(facts, call.scheduler):
            continue
        return _origin(
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
            return _origin(
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


def shared_scaler(facts: StepFacts) -> Origin | None:
    """Of two optimizers that one backward feeds, one stepped and the other skipped."""
    asked = {id(optimizer): optimizer for optimizer, _ in facts.events.scaled_steps}
    taken = {id(call.optimizer) for call in facts.taken}
    behind = [optimizer for key, optimizer in asked.items() if key not in taken]
    if not behind or not taken & asked.keys() or len(facts.trace.roots) != facts.micro_batches:
        return None
    skipped = [facts.name_of(p) for g in behind[0].param_groups for p in g["params"]]
    bad = {d.name for d in facts.trace.damages if d.place == "gradient"}
    names = [name for name in skipped if name in bad] or skipped
    lines = [line for optimizer, line in facts.events.scaled_steps if optimizer is behind[0]]
    return _origin(
        facts,
        "GradScaler.step",
        Phase.OPTIMIZER,
        parameter=names[0] if names else "",
        source_line=lines[0],
        summary=(
            f"one scaler, {len(asked)} optimizers: {type(behind[0]).__name__} skipped the step and "
            f"the other one took it, so that only a part of the model was trained"
        ),
    )


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
        return _origin(
            facts,
            "resume",
            Phase.OPTIMIZER,
            parameter=facts.largest(),
            source_line=call.source_line,
            summary=(
                f"{type(call.optimizer).__name__} entered the step without its state{after}: of "
                f"{len(held)} parameters {len(lost or held)} start again from empty moments"
            ),
        )
    return None


def scale_reset(facts: StepFacts) -> Origin | None:
    """The loss scale is not what the step before left: a scaler without its state."""
    now, before = facts.scale, _scale_before(facts)
    if before is None:
        return None
    return _origin(
        facts,
        "resume",
        Phase.OUTSIDE,
        summary=(
            f"the loss scale went from {before:,.6g} to {now:,.6g} between two steps, and no "
            "update() did that"
        ),
        before=(scale_link(facts),),
    )


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
    return _origin(
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
    return _origin(
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
    return _origin(
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


def clip_after_step(facts: StepFacts) -> Origin | None:
    """The gradients were clipped after the optimizer had used them."""
    for clip in facts.events.clips:
        stepped = [id(call.optimizer) in clip.owners for call in facts.events.optimizers]
        before, later = stepped[: clip.after], stepped[clip.after :]
        if not any(before) or any(later) or not _engaged(clip):
            continue
        return _origin(
            facts,
            "clip",
            Phase.CLIP,
            parameter=facts.largest(),
            source_line=clip.source_line,
            summary=(
                f"the clip came after the step: the optimizer had used gradients of norm "
                f"{float(clip.norm):.4g} before they were cut to {clip.max_norm:.4g}"
            ),
        )
    return None


CHECKS: tuple[Check, ...] = (
    state_lost,
    clip_of_scaled_gradients,
    step_past_the_scaler,
    hidden_skip,
    scheduler_ahead,
    shared_scaler,
    scale_reset,
    gradients_kept,
    underflowed,
    rounded_away,
    clip_after_step,
    scheduler_twice,
)
"""All checks; of several faults in one step the first is told."""

BEFORE_NORM: tuple[Check, ...] = (clip_of_scaled_gradients, step_past_the_scaler)
"""Those that explain a norm that overflows."""

SKIP_CHECKS: tuple[Check, ...] = (
    clip_of_scaled_gradients,
    hidden_skip,
    scheduler_ahead,
    shared_scaler,
)
"""Those that mean something in a step that the scaler skipped."""


def undivided(facts: StepFacts) -> str:
    """A clause where each micro-batch's whole loss went into backward; empty where none did."""
    count, roots, losses = facts.micro_batches, facts.trace.roots, facts.losses
    if count < 2 or not len(roots) == len(losses) == count:
        return ""
    pairs = [(r, facts.scale * x) for r, x in zip(roots, losses, strict=True) if math.isfinite(r)]
    if not pairs or not all(math.isclose(r, x, rel_tol=1e-3) for r, x in pairs):
        return ""
    return (
        f"the losses of {count} micro-batches are not divided by {count}, so that gradients are "
        f"{count} times those of their mean"
    )


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


def scale_link(facts: StepFacts) -> ChainLink | None:
    """The reset of the loss scale as a link of a chain; None where there was none."""
    before = _scale_before(facts)
    if before is None:
        return None
    name = f"{before:,.6g} -> {facts.scale:,.6g}"
    return ChainLink(phase=str(Phase.OUTSIDE), what="loss scale", name=name)


def _scale_before(facts: StepFacts) -> float | None:
    """The scale before, where it is not the one that the step used."""
    if not facts.events.scalers:
        return None
    now, start = facts.scale, facts.start
    if start.scaler is not None and now != start.scale:
        return start.scale
    recorded = facts.context.scale_before
    if recorded is None or not recorded > 0:
        return None
    scaler = next(iter(facts.events.scalers.values()))[0]
    jumped = now > recorded * scaler.get_growth_factor() * 1.001
    return recorded if jumped else None


def _engaged(clip: ClipCall) -> bool:
    norm = float(clip.norm)
    return math.isfinite(norm) and clip.max_norm < _ENGAGED * norm


def _is_unintended(facts: StepFacts, clip: ClipCall, effective: float) -> bool:
    """Is the threshold as configured, rather than multiplied by the scale for this very purpose?"""
    threshold = facts.context.threshold
    if threshold is not None:
        return effective < 0.5 * threshold
    return effective < _EFFECTIVE and clip.max_norm <= _USUAL


def _is_same(facts: StepFacts, call: OptimizerCall, norm: float, came: float) -> bool:
    """Is this the norm that arrived, or that a clip of it left?"""
    clipped = [clip.max_norm for clip in facts.events.clips if _engaged(clip)]
    del call
    return any(math.isclose(norm, size, rel_tol=1e-3) for size in (came, *clipped))


def _user_hooks(call: OptimizerCall) -> str:
    """What takes the call of ``step`` for a step: the user's own hooks."""
    hooks = list(call.optimizer._optimizer_step_post_hooks.values())
    return f"the post-hook{'s' * (len(hooks) > 1)} of the optimizer" if hooks else ""


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


def _origin(
    facts: StepFacts,
    operator: str,
    phase: Phase,
    *,
    summary: str,
    node: str = "",
    module: str = "",
    parameter: str = "",
    parameters: tuple[str, ...] = (),
    source_line: str = "",
    before: tuple[ChainLink | None, ...] = (),
) -> Origin:
    names = parameters or tuple(dict.fromkeys(facts.trace.arrival))
    links = [link for link in before if link is not None]
    links.append(ChainLink(phase=str(phase), what=operator, name=parameter))
    return Origin(
        kind=FaultKind.APPLIED,
        phase=str(phase),
        operator=operator,
        autograd_node=node,
        module=module,
        parameter=parameter,
        parameters=names,
        source_line=source_line,
        chain=tuple(links),
        summary=f"{summary}.",
    )
