"""What a step applied where a loss scale is at work: clips, skips and steps past the scaler.

Each check is a precise predicate on one traced step and returns the origin, or None.
"""

from __future__ import annotations

import math

from forensics.diagnose.bisection_result import ChainLink, Origin
from forensics.replay.applied.step_watch import ClipCall, OptimizerCall, hooks_of_users
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.judgement import applied_origin
from forensics.replay.tracing.step_facts import StepFacts, module_of

_ENGAGED = 0.999
"""A clip that leaves more of the norm than this did not engage."""
_EFFECTIVE = 1 / 64
"""Thresholds below this, after unscaling, are nobody's intention: those in use are 0.1 to 10."""
DIVIDED_AGAIN = "gradients / loss scale"
"""The operator of gradients that were divided by the loss scale once too often."""
UPDATED_TWICE = "GradScaler.update"
"""The operator of a scaler that is updated more than once a step."""
_LEAST_SCALE = 16.0
"""Loss scales below this are factors that a loop may divide by for another reason."""
_USUAL = 100.0
"""Thresholds above this were multiplied by the loss scale on purpose."""


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
        return applied_origin(
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
        came = _arrived(facts, call)
        if not came or norm < came / math.sqrt(scale) or not _is_same(facts, call, norm, came):
            continue  # unscaled by hand
        largest = max(call.entry.values(), key=lambda look: look.grad_l2)
        name = facts.name_of(largest.parameter)
        return applied_origin(
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


def _arrived(facts: StepFacts, call: OptimizerCall) -> float:
    """L2 norm of an optimizer's gradients as backward left them, over all its parameters."""
    names = [facts.name_of(look.parameter) for look in call.entry.values()]
    return math.hypot(*(facts.trace.arrived.get(name, 0.0) for name in names))


def divided_again(facts: StepFacts) -> Origin | None:
    """The optimizer got gradients divided by the loss scale once more than they were multiplied.

    They were unscaled and then divided by hand as well, or unscaled though ``backward`` was called
    on the loss as it is. Without a clip, or with one, the norm is then that of the updates due
    divided by the scale: at the scales in use, of thousands, nothing else gives that number.
    """
    scale = facts.scale
    multiplied = _backward_was_scaled(facts)
    for call in facts.taken:
        if scale < _LEAST_SCALE or call.found_inf is not None:  # that kernel divides by itself
            continue
        came = _arrived(facts, call)
        due = came / (scale if multiplied else 1.0)
        got = math.hypot(*(look.grad_l2 for look in call.entry.values()))
        sizes = (due, *(clip.max_norm for clip in facts.events.clips if clip.max_norm < due))
        if not any(math.isclose(got * scale, size, rel_tol=1e-3) for size in sizes if size):
            continue
        how = "scaled once and divided by it twice" if multiplied else "divided by it, never scaled"
        name = facts.largest()
        return applied_origin(
            facts,
            DIVIDED_AGAIN,
            Phase.UNSCALE,
            parameter=name,
            module=module_of(name),
            source_line=call.source_line,
            summary=(
                f"the optimizer got gradients of norm {got:.3g} where {due:.3g} is due: that is "
                f"1/{scale:,.0f}, the loss scale, of it; they were {how}"
            ),
        )
    return None


def updated_too_often(facts: StepFacts) -> Origin | None:
    """``GradScaler.update()`` was called more often than ``GradScaler.step()``.

    Each call counts as a step of the growth interval, or sets the scale. Where nothing was scaled
    or stepped (a skip by hand calls ``update`` alone) there is nothing to say.
    """
    events = facts.events
    steps, calls = len(events.scaled_steps), len(events.updates)
    due = max(steps, len(events.scalers))  # one for each of several scalers
    if not events.scalers or not steps or calls <= due:
        return None
    return applied_origin(
        facts,
        UPDATED_TWICE,
        Phase.UNSCALE,
        source_line=events.updates[-1],
        summary=(
            f"GradScaler.update() was called {calls} times for {steps} GradScaler.step(): the "
            f"loss scale of {facts.scale:,.0f} moves faster than its growth interval allows"
        ),
    )


def hidden_skip(facts: StepFacts) -> Origin | None:
    """A fused optimizer was called and skipped inside, and something counts it as a step."""
    for call in facts.events.optimizers:
        counts = _user_hooks(call)
        if not call.skipped_inside or not counts:
            continue
        kernel = f"_fused_{type(call.optimizer).__name__.lower()}_"
        return applied_origin(
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
    return applied_origin(
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


def scale_reset(facts: StepFacts) -> Origin | None:
    """The loss scale is not what the step before left: a scaler without its state."""
    now, before = facts.scale, _scale_before(facts)
    if before is None:
        return None
    return applied_origin(
        facts,
        "resume",
        Phase.OUTSIDE,
        summary=(
            f"the loss scale went from {before:,.6g} to {now:,.6g} between two steps, and no "
            "update() did that"
        ),
        before=(scale_link(facts),),
    )


def clip_after_step(facts: StepFacts) -> Origin | None:
    """The gradients were clipped after the optimizer had used them."""
    for clip in facts.events.clips:
        stepped = [id(call.optimizer) in clip.owners for call in facts.events.optimizers]
        before, later = stepped[: clip.after], stepped[clip.after :]
        if not any(before) or any(later) or not _engaged(clip):
            continue
        return applied_origin(
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


def _backward_was_scaled(facts: StepFacts) -> bool:
    """Was ``backward`` called on the scaled loss? So it is, unless every root is a plain loss."""
    roots, losses = facts.trace.roots, facts.losses
    if not roots or len(roots) != len(losses):
        return True
    parts = (1, len(losses))
    pairs = [(root, loss) for root, loss in zip(roots, losses, strict=True) if loss]
    plain = (
        any(math.isclose(root * part, loss, rel_tol=1e-3) for part in parts) for root, loss in pairs
    )
    return not pairs or not all(plain)


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
    hooks = hooks_of_users(call.optimizer)
    return f"the post-hook{'s' * (hooks > 1)} of the optimizer" if hooks else ""
