"""From the trace of one step to its origin: which birth did the damage, and what that means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin, TensorFacts
from forensics.replay.op_trace import INPUT, Birth
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.explanation import explain, is_overflow
from forensics.replay.tracing.raised import Raised
from forensics.replay.tracing.step_facts import StepFacts
from forensics.replay.tracing.step_trace import Damage, StepTrace
from forensics.replay.tracing.tensor_stats import TensorStats

_BIRTHS_TOLD = 3
"""Operators between the origin and the loss that a chain names."""
_PLACES = {
    "parameter": (Phase.OPTIMIZER, "parameter"),
    "optimizer": (Phase.OPTIMIZER, "optimizer state"),
    "buffer": (Phase.FORWARD, "buffer"),
    "extra": (Phase.EMA, "state"),
}


def origin_of(trace: StepTrace) -> Origin | None:
    """The origin of the first damage whose descent is known; None where nothing was damaged.

    A step that raised is judged by what raised it, unless something was non-finite before.
    """
    damage = next((d for d in trace.damages if d.birth is not None), None)
    if damage is not None and damage.birth is not None:
        return birth_origin(trace, damage.birth)
    if trace.raised:
        return _born_before(trace, trace.raised) or raised_origin(trace.raised)
    return _mask_origin(trace)


def _born_before(trace: StepTrace, raised: Raised) -> Origin | None:
    """Where the value was born that an exception complains of; None where it does not."""
    births = [i for i, birth in enumerate(trace.births) if not birth.leaf]
    if not raised.of_values or not births:
        return None
    index = births[-1]
    while (parent := trace.births[index].parent) is not None:
        index = parent
    origin, end = birth_origin(trace, index), raised_origin(raised)
    return replace(
        origin,
        chain=(*origin.chain, *end.chain),
        summary=f"{origin.summary.rstrip('.')}; then {end.summary}",
        traceback=raised.traceback,
    )


def _mask_origin(trace: StepTrace) -> Origin | None:
    """A deliberate infinity that came through to the loss or the weights: nothing else was bad."""
    damage = next((d for d in trace.damages if d.mask is not None), None)
    if damage is None or damage.mask is None:
        return None
    mask = trace.masks[damage.mask]
    what = damage.place if not damage.name else f"{damage.place} {damage.name}"
    where = f" in {mask.module}" if mask.module else ""
    reader = trace.readers.get(damage.mask)
    read = (
        f" by {reader.operator} ({reader.source_line.partition(chr(32) * 2)[0]})" if reader else ""
    )
    reads = () if reader is None else (_link_of(reader),)
    return Origin(
        kind=FaultKind.INF,
        phase=str(mask.phase),
        operator=mask.operator,
        module=mask.module,
        parameters=bad_parameters(trace, trace.damages),
        source_line=mask.source_line,
        output=None if mask.output is None else facts_of(mask.output),
        chain=(_link_of(mask), *reads, ChainLink(phase="", what=what, kind=damage.kind)),
        summary=(
            f"an infinity that {mask.operator}{where} put there on purpose came through to the "
            f"{what}{read}: {_how_much(mask)}"
        ),
    )


def _how_much(mask: Birth) -> str:
    """A mask over everything, or a part of it that something read all the same."""
    stats = mask.output
    if stats is None or stats.inf == stats.numel:
        return "a mask that covers everything?"
    return (
        f"{stats.inf:,} of {stats.numel:,} elements are masked, and what is made of them reads "
        "them too, such as a sum over all classes (label smoothing) or a masked label"
    )


def birth_origin(trace: StepTrace, index: int) -> Origin:
    """What one birth of a trace came to.

    Args:
        trace: of the step.
        index: of a birth without a parent.
    """
    birth = trace.births[index]
    own = [d for d in trace.damages if d.birth is not None and d.birth == index]
    bad = bad_parameters(trace, trace.damages)
    parameter = _parameter(birth, own)
    at = _element(birth, own, parameter)
    return Origin(
        kind=FaultKind(birth.kind),
        phase=str(birth.phase),
        operator=birth.operator,
        autograd_node=birth.autograd_node,
        module=birth.module,
        parameter=parameter,
        parameters=bad if parameter in bad or not parameter else (*bad, parameter),
        element=str(list(at)) if at is not None else "",
        source_line=birth.source_line,
        inputs=tuple(facts_of(stats) for stats in birth.inputs),
        output=None if birth.output is None else facts_of(birth.output, _leaf_name(birth)),
        chain=chain_of(trace, index),
        summary=f"{explain(birth)}{_also_named(trace, parameter)}.",
        traceback=birth.traceback if len(birth.traceback) > 1 else (),
    )


def norm_origin(facts: StepFacts) -> Origin | None:
    """A gradient norm that overflowed over finite gradients: the clip makes all of them 0."""
    trace = facts.trace
    births = [(i, b) for i, b in enumerate(trace.births) if _is_norm_overflow(b)]
    if not births or any(d.place == "gradient" for d in trace.damages):
        return None
    index, birth = births[0]
    name, lines = facts.largest(), [clip.source_line for clip in facts.events.clips]
    true = facts.arrived() / facts.scale
    return Origin(
        kind=FaultKind.NORM_OVERFLOW,
        phase=str(Phase.CLIP),  # what measures gradients is of the clip, whoever calls it
        operator=birth.operator,
        module=birth.module,
        parameter=name,
        parameters=tuple(dict.fromkeys(trace.arrival)),
        source_line=birth.source_line or next(iter(lines), ""),
        inputs=tuple(facts_of(stats) for stats in birth.inputs),
        output=None if birth.output is None else facts_of(birth.output),
        chain=(
            *chain_of(trace, index),
            ChainLink(phase=str(Phase.CLIP), what="norm", kind="inf"),
        ),
        summary=(
            f"the gradient norm overflowed in {birth.operator}: every gradient is finite, their "
            f"true norm is {true:.3g} (largest in {name})"
            + ("; clipped by an infinite norm, they become 0." if lines else ".")
        ),
    )


def applied_origin(
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
    """An origin of what was applied: nothing is non-finite in it.

    Args:
        facts: of the step.
        operator: what is wrong, such as ``clip``.
        phase: where.
        summary: one sentence, without its full stop.
        node: the backward node that is to blame.
        module: whose; empty for the root.
        parameter: nearest the fault.
        parameters: all that it touches; by default every one with a gradient, of a schedule none.
        source_line: the user's line.
        before: links of the chain that come first.
    """
    names = parameters
    if not names and phase is not Phase.SCHEDULER:  # a schedule has no parameter of its own
        names = tuple(dict.fromkeys(facts.trace.arrival))
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


def raised_origin(raised: Raised) -> Origin:
    """The origin of a step that raised with nothing non-finite before."""
    where = f" in {raised.module}" if raised.module else ""
    nameless = raised.message.startswith(raised.function)
    what = f"the step{where}" if nameless else f"{raised.function}{where}"
    return Origin(
        kind=FaultKind.EXCEPTION,
        phase=str(raised.phase),
        operator=raised.function,
        module=raised.module,
        source_line=raised.source_line,
        inputs=tuple(facts_of(stats) for stats in raised.inputs),
        chain=(ChainLink(phase=str(raised.phase), what="exception", name=raised.function),),
        summary=f"{what} raised {raised.message}",
        traceback=raised.traceback,
    )


def bad_parameters(trace: StepTrace, damages: Iterable[Damage]) -> tuple[str, ...]:
    """The parameters that went bad, in gradient-arrival order, tied ones under all their names."""
    places = ("gradient", "parameter")
    bad = {d.name: None for place in places for d in damages if d.place == place}
    bad = bad or {d.name: None for d in damages if d.place == "optimizer"}
    named = {name: i for i, name in reversed(list(enumerate(trace.arrival)))}
    ordered = sorted(bad, key=lambda name: named.get(name, len(trace.arrival)))
    return tuple(n for name in ordered for n in (name, *trace.tied.get(name, ())))


def chain_of(trace: StepTrace, index: int) -> tuple[ChainLink, ...]:
    """From the origin to the damage: operators, the loss, the first gradient, what is left."""
    links = [_link_of(trace.births[index])]
    operators = [b for b in trace.births[index + 1 :] if _descends(trace.births, b, index)]
    links += [_link_of(birth) for birth in operators[:_BIRTHS_TOLD]]
    damages = [d for d in trace.damages if d.birth == index]
    loss = next((d for d in damages if d.place == "loss"), None)
    if loss is not None:
        # What came after the loss is told after it.
        before = [link for link in links[1:] if link.phase in ("forward", "loss")]
        links = [links[0], *before, ChainLink(phase="loss", what="loss", kind=loss.kind)]
        if not trace.arrival:
            links.append(ChainLink(phase="backward", what="no gradient"))
    gradients = [d for d in damages if d.place == "gradient"]
    if gradients:
        first = gradients[0]
        links.append(ChainLink(phase="backward", what="gradient", name=first.name, kind=first.kind))
    for place, (phase, what) in _PLACES.items():
        found = next((d for d in damages if d.place == place), None)
        if found is not None:
            links.append(ChainLink(phase=str(phase), what=what, name=found.name, kind=found.kind))
    if trace.raised is not None:
        at = trace.raised
        links.append(ChainLink(phase=str(at.phase), what="exception", name=at.function))
    return tuple(links)


def _is_norm_overflow(birth: Birth) -> bool:
    norm = "norm" in birth.operator and "layer_norm" not in birth.operator
    outside = birth.phase is Phase.CLIP and not birth.autograd_node
    return norm and outside and birth.kind == "inf" and all(s.finite for s in birth.inputs)


def facts_of(stats: TensorStats, name: str = "") -> TensorFacts:
    """A tensor in numbers, as results keep them."""
    return TensorFacts(
        dtype=stats.dtype,
        shape=stats.shape,
        absmax=stats.absmax,
        nan=stats.nan,
        inf=stats.inf,
        numel=stats.numel,
        name=name,
    )


def _parameter(birth: Birth, own: Sequence[Damage]) -> str:
    """The parameter nearest the origin."""
    kind, _, name = birth.operator.partition(":")
    if birth.leaf and kind != INPUT:
        return name
    places = {d.place: d for d in reversed(own)}
    if birth.autograd_node or birth.phase in (Phase.UNSCALE, Phase.CLIP):
        return _largest_beside(own, "gradient") or _largest_beside(own, "parameter")
    if birth.phase in (Phase.OPTIMIZER, Phase.EMA):
        found = places.get("parameter") or places.get("optimizer") or places.get("extra")
        return found.name if found else ""
    if "buffer" in places and "loss" not in places:
        return places["buffer"].name
    return birth.parameter if _is_its_own(birth) else ""


def _largest_beside(own: Sequence[Damage], place: str) -> str:
    """The first damaged parameter, or the larger one of its layer: a weight rather than its bias.

    The gradients of one layer arrive in no telling order.
    """
    damages = [d for d in own if d.place == place and d.stats is not None]
    if not damages:
        return ""
    layer = damages[0].name.rpartition(".")[0]
    beside = [d for d in damages if d.name.rpartition(".")[0] == layer and layer]
    return max(beside or damages[:1], key=lambda d: d.stats.numel if d.stats else 0).name


def _is_its_own(birth: Birth) -> bool:
    """Is a forward operator's nearest parameter an input, or outgrown inside its module?"""
    if birth.leaf or not birth.parameter:
        return False
    inside = bool(birth.module) and birth.parameter.startswith(f"{birth.module}.")
    return birth.direct or (inside and is_overflow(birth))


def _element(birth: Birth, own: Sequence[Damage], parameter: str) -> tuple[int, ...] | None:
    """The index of a guilty element: of the leaf, else of the parameter, else of the output.

    None where all of them are bad, and in a parameter whose forward overflowed: none of its own is.
    """
    stats = birth.output
    if parameter and not birth.leaf:
        if birth.phase in (Phase.FORWARD, Phase.LOSS):
            own = [d for d in own if d.place == "buffer"]
        stats = next((d.stats for d in own if d.name == parameter), None)
    return None if stats is None or stats.nan + stats.inf == stats.numel else stats.first_bad


def _link_of(birth: Birth) -> ChainLink:
    what = birth.autograd_node or birth.operator
    return ChainLink(phase=str(birth.phase), what=what, name=birth.module, kind=birth.kind)


def _descends(births: Sequence[Birth], birth: Birth, index: int) -> bool:
    while birth.parent is not None:
        if birth.parent == index:
            return True
        birth = births[birth.parent]
    return False


def _leaf_name(birth: Birth) -> str:
    return birth.operator.partition(":")[2] if birth.leaf else ""


def _also_named(trace: StepTrace, parameter: str) -> str:
    others = trace.tied.get(parameter, ())
    return f"; {parameter} is tied to {', '.join(others)}" if others else ""
