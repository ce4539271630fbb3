"""What the optimizers and schedules of a step cover: whose parameters, how often, which way.

Each check is a precise predicate on one traced step and returns the origin, or None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.diagnose.bisection_result import ChainLink, Origin
from forensics.replay.applied.step_watch import OptimizerCall
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.judgement import applied_origin
from forensics.replay.tracing.step_facts import StepFacts, module_of

LEFT_OUT = "optimizer.param_groups"
"""The operator of parameters that no optimizer holds."""
STEPPED_TWICE = "optimizer.step"
"""The operator of gradients that were applied more than once."""
CLIMBS = "optimizer.maximize"
"""The operator of an optimizer that was told to climb."""
_HORIZONS = ("T_max", "total_steps", "total_iters")
"""Attributes of torch's schedules that say how many moves they are made for."""
_ALIKE = 0.01
"""Relative difference at which a schedule's horizon is the run's number of steps."""
_SHOWN = 3


def left_out(facts: StepFacts) -> Origin | None:
    """Parameters that get gradients, do not move, and are in no optimizer.

    Where they are the greater part a head alone is trained on purpose, unless an optimizer holds
    parameters that the model does not own and that get no gradient: those were replaced.
    """
    model = facts.training.model
    still = [
        name
        for name, parameter in model.named_parameters()
        if name in facts.start.unheld
        and facts.trace.arrived.get(name, 0.0) > 0
        and torch.equal(parameter.detach(), facts.start.unheld[name])
    ]
    if not still or not facts.taken:
        return None
    stale = _stale(facts)
    trained = sum(p.requires_grad for p in model.parameters())
    if 2 * len(still) >= trained and not stale:
        return None
    held = f", which holds {stale} that the model no longer has," if stale else ""
    call = facts.taken[0]
    return applied_origin(
        facts,
        LEFT_OUT,
        Phase.OPTIMIZER,
        parameter=still[0],
        parameters=tuple(still),
        module=module_of(still[0]),
        source_line=call.source_line,
        summary=(
            f"{_some(still)} {'get gradients and are' if len(still) > 1 else 'gets one and is'} in "
            f"no optimizer: {type(call.optimizer).__name__}{held} never moves "
            f"{'them' if len(still) > 1 else 'it'}"
        ),
    )


def stepped_twice(facts: StepFacts) -> Origin | None:
    """An optimizer applied the very same gradients more than once in a step."""
    for number, call in enumerate(facts.taken):
        same = [c for c in facts.taken[number:] if _has_same_gradients(c, call)]
        if len(same) < 2:
            continue
        return applied_origin(
            facts,
            STEPPED_TWICE,
            Phase.OPTIMIZER,
            parameter=facts.largest(),
            source_line=same[-1].source_line,
            summary=(
                f"{type(call.optimizer).__name__}.step() was called {len(same)} times with the "
                "same gradients: each update was applied again"
            ),
        )
    return None


def schedule_by_micro_batch(facts: StepFacts) -> Origin | None:
    """A schedule made for as many moves as the run has steps was moved once a micro-batch."""
    for scheduler, count, line in _moved_by_micro_batch(facts):
        meant, steps = _horizon(scheduler), facts.context.steps
        if not meant or not steps or abs(meant - steps) > _ALIKE * steps:
            continue
        return applied_origin(
            facts,
            "lr_scheduler.step",
            Phase.SCHEDULER,
            source_line=line,
            summary=(
                f"{type(scheduler).__name__}.step() was called {count} times in one step, once a "
                f"micro-batch: it is made for {meant:,} moves, as many as the run has steps, and "
                f"is through after {math.ceil(meant / count):,} of them"
            ),
        )
    return None


def schedule_note(facts: StepFacts) -> str:
    """A sentence where a schedule moves once a micro-batch and may be meant to; else empty."""
    for scheduler, count, line in _moved_by_micro_batch(facts):
        return (
            f"{type(scheduler).__name__}.step() is called {count} times a step, once a micro-batch "
            f"({line}): its moves are micro-batches, not optimizer steps; is that meant?"
        )
    return ""


def without_gradient(facts: StepFacts) -> frozenset[str] | None:
    """Parameters that an optimizer holds, want a gradient and get none; None of a skipped step."""
    if not facts.taken:
        return None
    held = {id(p) for call in facts.taken for p in _held(call.optimizer)}
    return frozenset(
        name
        for name, parameter in facts.training.model.named_parameters()
        if parameter.requires_grad
        and id(parameter) in held
        and name not in facts.trace.arrived
        and parameter.grad is None
    )


def idle_note(seen: Mapping[int, frozenset[str]]) -> str:
    """A sentence where parameters got no gradient in any step; nobody can tell if that is meant.

    Args:
        seen: what ``without_gradient`` gave, by step.
    """
    idle = frozenset[str].intersection(*seen.values()) if len(seen) > 1 else frozenset[str]()
    if not idle:
        return ""
    return (
        f"{_some(sorted(idle))} got no gradient in any of the {len(seen)} steps looked into, "
        f"although the optimizer holds {'them' if len(idle) > 1 else 'it'}: unused there, or "
        "detached on the way to the loss?"
    )


def climbs(facts: StepFacts) -> Origin | None:
    """The only optimizer climbs its loss, which rises."""
    optimizers = facts.training.optimizers
    if not facts.context.rises or len(optimizers) != 1:
        return None
    for call in facts.taken:
        groups = call.optimizer.param_groups
        if not groups or not all(group.get("maximize") for group in groups):
            continue
        return applied_origin(
            facts,
            CLIMBS,
            Phase.OPTIMIZER,
            parameter=facts.largest(),
            source_line=call.source_line,
            summary=(
                f"{type(call.optimizer).__name__} was made with maximize=True: it climbs the loss, "
                "which rises over the run"
            ),
        )
    return None


def whose_rate(facts: StepFacts, origin: Origin) -> Origin:
    """The origin with the group whose rate is not finite, where there are several groups."""
    for call in facts.events.optimizers:
        bad = [i for i, rate in enumerate(call.rates) if not math.isfinite(rate)]
        if not bad or len(call.rates) < 2:
            continue
        held = call.optimizer.param_groups[bad[0]]["params"]
        names = [name for p in held if (name := facts.name_of(p))]
        group = f"group {bad[0]} ({_some(names)})" if names else f"group {bad[0]}"
        told = origin.summary.replace("the learning rate is", f"the learning rate of {group} is", 1)
        chain = tuple(_with_group(link, bad[0]) for link in origin.chain)
        return replace(origin, summary=told, chain=chain)
    return origin


def _with_group(link: ChainLink, group: int) -> ChainLink:
    if link.what != "learning rate":
        return link
    return replace(link, what=f"learning rate of group {group}")


def _stale(facts: StepFacts) -> int | str:
    """How many parameters an optimizer holds that are not the model's and got no gradient."""
    own = {id(p) for p in facts.training.model.parameters()}
    stale = [
        p
        for optimizer in facts.training.optimizers
        for p in _held(optimizer)
        if id(p) not in own and p.requires_grad and p.grad is None
    ]
    return f"{len(stale)} parameter{'s' if len(stale) > 1 else ''}" if stale else ""


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_same_gradients(call: OptimizerCall, first: OptimizerCall) -> bool:
    if call.optimizer is not first.optimizer or not first.entry:
        return False
    now = {key: look.grad_l2 for key, look in call.entry.items()}
    then = {key: look.grad_l2 for key, look in first.entry.items()}
    return now == then and any(then.values())


def _moved_by_micro_batch(facts: StepFacts) -> list[tuple[object, int, str]]:
    """Schedules that were called once a micro-batch: each with its calls and the last line."""
    found: dict[int, tuple[object, int, str]] = {}
    for call in facts.events.schedulers:
        _, count, _ = found.get(id(call.scheduler), (None, 0, ""))
        found[id(call.scheduler)] = (call.scheduler, count + 1, call.source_line)
    several = facts.micro_batches > 1 and len(facts.taken) < facts.micro_batches
    return [entry for entry in found.values() if several and entry[1] == facts.micro_batches]


def _horizon(scheduler: object) -> int:
    """How many moves a schedule is made for; 0 where it does not say."""
    values = (getattr(scheduler, name, None) for name in _HORIZONS)
    return next((value for value in values if isinstance(value, int)), 0)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
