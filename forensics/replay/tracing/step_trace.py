"""One traced step: what was damaged, in order, and the birth each damage descends from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from forensics.replay.op_trace import INPUT, Birth, OpTrace, tracing
from forensics.replay.tracing.call_site import Parts, Phase
from forensics.replay.tracing.raised import Raised, describe_raised
from forensics.replay.tracing.tensor_stats import (
    TensorStats,
    float_tensors,
    is_float,
    named_tensors,
    nonfinite_kind,
    stats_of,
)
from forensics.replay.tracing.underflow import Underflow


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Something that a step left, or passed on, non-finite.

    Attributes:
        place: ``loss``, ``gradient``, ``parameter``, ``buffer``, ``optimizer`` or ``extra``.
        name: of the parameter, buffer or state; empty for the loss.
        kind: ``nan`` or ``inf``.
        birth: index of the birth it descends from; None when that is not known.
        stats: the tensor in numbers; None where it is a plain number.
        mask: index of the deliberate infinity that it descends from, if from no birth.
    """

    place: str
    name: str
    kind: str
    birth: int | None
    stats: TensorStats | None = None
    mask: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """What one traced step shows.

    Attributes:
        births: every non-finite value that came into being, in order.
        masks: infinities that were put somewhere on purpose, in order.
        readers: by index of those, the first operator that sums over or chooses from them.
        damages: in the order of the step: loss, gradients as they arrive, then what is left.
        arrival: parameters in the order their gradients arrived; a repeat is a micro-batch.
        loss: the loss the step returned, as a float; NaN where it raised.
        exception: ``Type: message`` of what the step raised, or empty.
        raised: the same in detail, or None.
        tied: further names of parameters that have several, by their first name.
        underflows: backward operators that lost their result to half precision, in order.
        arrived: L2 norm of each gradient as it last arrived, all micro-batches summed.
        kept: L2 norm of what each gradient held before the first micro-batch's arrived.
        restarted: gradients were cleared between two of the step's backward passes.
        roots: what ``backward()`` was called on, as numbers, in order.
    """

    births: tuple[Birth, ...]
    damages: tuple[Damage, ...]
    arrival: tuple[str, ...]
    loss: float
    exception: str = ""
    raised: Raised | None = None
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    masks: tuple[Birth, ...] = ()
    readers: Mapping[int, Birth] = field(default_factory=dict)
    underflows: tuple[Underflow, ...] = ()
    arrived: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, float] = field(default_factory=dict)
    restarted: bool = False
    roots: tuple[float, ...] = ()

    @property
    def origin(self) -> Birth | None:
        """The birth behind the first damage whose descent is known."""
        known = (d.birth for d in self.damages if d.birth is not None)
        index = next(known, None)
        return None if index is None else self.births[index]


def trace_step(
    run_step: Callable[[], Any],
    *,
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    micro_batches: Sequence[Any] = (),
    extra: Sequence[tuple[str, Any]] = (),
    schedulers: Sequence[Any] = (),
    ema: Any = None,
) -> StepTrace:
    """Run one optimizer step under the operator trace.

    Args:
        run_step: runs the step, returns its loss (tensor or number). What it raises is recorded.
        model: the module that is trained.
        optimizers: their states are looked at before and after.
        micro_batches: the step's input; a non-finite one is a birth of its own.
        extra: further named state, such as an EMA: nested tensors, or an object with
            ``state_dict``.
        schedulers: to tell what they run from the loss.
        ema: the same for an average.
    """
    tracer = StepTracer(
        model,
        optimizers=optimizers,
        micro_batches=micro_batches,
        extra=extra,
        parts=Parts.of(model, optimizers, schedulers, ema),
    )
    # Whatever the user's loop raises is evidence, and is kept.
    with contextlib.suppress(Exception):
        tracer.run(run_step)
    return tracer.result()


class StepTracer:
    """Traces one step, and lets what it raises pass; arguments as of ``trace_step``."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizers: Sequence[Optimizer] = (),
        micro_batches: Sequence[Any] = (),
        extra: Sequence[tuple[str, Any]] = (),
        parts: Parts | None = None,
    ) -> None:
        self.model, self.optimizers, self.extra = model, list(optimizers), list(extra)
        self.trace = OpTrace(model, parts)
        self.seen = _Gradients(self.trace)
        self.other_losses: list[Damage] = []
        """Bad losses of other ranks, whose share of the step is traced elsewhere."""
        self._loss: Any = None
        self._raised: Raised | None = None
        self._masks = _infinite_by_nature(model, self.extra)
        _take_in_leaves(self.trace, model, optimizers, micro_batches, self.extra, self._masks)

    def run(self, run_step: Callable[[], Any]) -> Any:
        """Run the step under the trace; returns its loss."""
        _RUNNING.append(self)
        with self.seen.watching(self.model):
            try:
                with tracing(self.trace):
                    self._loss = run_step()
            except (Exception, SystemExit) as error:
                told = describe_raised(error, self.trace.parts, self.trace.raised_in)
                self._raised = _at_its_forward(told, self.trace)
                raise
            finally:
                _RUNNING.remove(self)
        return self._loss

    def result(self) -> StepTrace:
        """What the trace shows; call once the step is over."""
        first = _loss_damage(self.trace, self._loss)
        if self.seen.damages:
            first = first or _root_damage(self.trace)
        if not self.seen.damages:
            first = first or _guarded(self.trace, self._raised)
        first = first or self.other_losses
        left = _left_behind(self.trace, self.model, self.optimizers, self.extra, self._masks)
        names = self.trace.parameter_names.names.values()
        return StepTrace(
            births=tuple(self.trace.births),
            damages=(*first, *self.seen.damages, *left),
            arrival=tuple(self.seen.arrival),
            loss=as_number(float("nan") if self._raised else self._loss),
            exception=self._raised.message if self._raised else "",
            raised=self._raised,
            tied={all_names[0]: all_names[1:] for all_names in names if len(all_names) > 1},
            masks=tuple(self.trace.masks),
            readers=dict(self.trace.readers),
            underflows=tuple(self.trace.underflows),
            arrived=self.seen.arrived,
            kept=self.seen.kept,
            restarted=self.seen.restarted,
            roots=tuple(float(root) for root in self.trace.roots),
        )


_RUNNING: list[StepTracer] = []
"""Those whose step is under way."""


def running_tracer() -> StepTracer | None:
    """The trace that the step under way runs in; None where it runs in none."""
    return _RUNNING[-1] if _RUNNING else None


def _at_its_forward(raised: Raised, trace: OpTrace) -> Raised:
    """What raised with its inputs; a refused backward is told where its forward was called."""
    raised = replace(raised, inputs=trace.raised_inputs)
    if not trace.edited:
        return raised
    node, site = trace.edited[0]
    return replace(
        raised,
        function=node,
        module=site.module,
        source_line=site.source_line,
        traceback=site.traceback,
    )


def _take_in_leaves(
    trace: OpTrace,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    micro_batches: Sequence[Any],
    extra: Iterable[tuple[str, Any]],
    masks: frozenset[str],
) -> None:
    """What exists before the step, most upstream first: a bad leaf comes before any operator."""
    for batch in micro_batches:
        for tensor in float_tensors(batch):
            trace.add_leaf(INPUT, Phase.INPUT, tensor)
    for place, name, tensor in _state(model, optimizers, extra):
        if f"{place}:{name}" in masks:
            trace.add_mask(tensor, f"{place}:{name}")
            continue
        label = {"parameter": "param"}.get(place, place)
        module = name.rpartition(".")[0] if place in ("parameter", "buffer") else ""
        phase = Phase.FORWARD if place in ("parameter", "buffer") else Phase.OPTIMIZER
        trace.add_leaf(f"{label}:{name}", phase, tensor, module)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and is_float(parameter.grad):
            trace.add_leaf(f"gradient:{name}", Phase.BACKWARD, parameter.grad)


def _state(
    model: nn.Module, optimizers: Iterable[Optimizer], extra: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, str, Tensor]]:
    """Every floating tensor of the training's state: (place, name, tensor)."""
    names = {id(p): name for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if is_float(parameter):
            yield "parameter", name, parameter.detach()
    for name, buffer in model.named_buffers():
        if is_float(buffer):
            yield "buffer", name, buffer.detach()
    for optimizer in optimizers:
        for owner, state in optimizer.state.items():
            for key, value in state.items():
                if is_float(value):
                    yield "optimizer", f"{names.get(id(owner), '?')}.{key}", value
    for name, owner in extra:
        tree = owner.state_dict() if hasattr(owner, "state_dict") else owner
        for path, tensor in named_tensors(name, tree):
            yield "extra", path, tensor


class _Gradients:
    """Looks at each gradient as it arrives: after the clip, innocent ones look guilty too."""

    def __init__(self, trace: OpTrace) -> None:
        self.trace = trace
        self.arrival: list[str] = []
        self.damages: list[Damage] = []
        self.arrived: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self.restarted = False

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hook every parameter's gradient."""
        handles: list[Any] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.is_leaf:
                handles.append(parameter.register_hook(self._before(name, parameter)))
                handles.append(parameter.register_post_accumulate_grad_hook(self._after(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str, parameter: Tensor) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            del gradient
            with _disable_current_modes():  # looking at a gradient is no part of the step
                held = grad_norm(parameter.grad)
            if not held:  # cleared since: what it held before does not matter
                self.restarted = self.restarted or bool(self.arrived.get(name))
                self.kept[name] = 0.0
            self.kept.setdefault(name, held)

        return look

    def _after(self, name: str) -> Callable[[Tensor], None]:
        def look(parameter: Tensor) -> None:
            self.arrival.append(name)
            with _disable_current_modes():
                self.arrived[name] = grad_norm(parameter.grad)
                for gradient in float_tensors(parameter.grad):  # of a sparse one the values
                    self.damages += _damage(self.trace, "gradient", name, gradient)

        return look


def grad_norm(gradient: Tensor | None) -> float:
    """The L2 norm, in float64 where the device has it; of a sparse gradient that of its values."""
    if gradient is None:
        return 0.0
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    values = torch.view_as_real(values) if values.is_complex() else values
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    return float(torch.linalg.vector_norm(values, dtype=wide))


def _damage(trace: OpTrace, place: str, name: str, tensor: Tensor) -> list[Damage]:
    kind = nonfinite_kind(tensor)
    if not kind:
        return []
    birth, mask, stats = trace.origin_of(tensor), trace.mask_of(tensor), stats_of(tensor)
    return [Damage(place=place, name=name, kind=kind, birth=birth, stats=stats, mask=mask)]


def _loss_damage(trace: OpTrace, loss: Any) -> list[Damage]:
    """The loss, where it is non-finite; a plain number by way of the host's reading of it."""
    if loss is None:
        return []
    if is_float(loss):
        return _damage(trace, "loss", "", loss)
    value = as_number(loss)
    kind = "nan" if value != value else "inf" if value in (float("inf"), float("-inf")) else ""
    return [Damage(place="loss", name="", kind=kind, birth=trace.last_read)] if kind else []


def _root_damage(trace: OpTrace) -> list[Damage]:
    """What backward was called on, where the step returns something else or another loss."""
    found = (d for root in trace.roots for d in _damage(trace, "loss", "", root))
    damage = next((d for d in found if d.birth is not None), None)
    return [] if damage is None else [damage]


def _guarded(trace: OpTrace, raised: Raised | None) -> list[Damage]:
    """The loss that a guard of the user's own refused: the step never came to return it."""
    if raised is None or not raised.by_user or trace.last_scalar is None:
        return []
    birth, kind = trace.last_scalar
    return [Damage(place="loss", name="", kind=kind, birth=birth)]


def as_number(loss: Any) -> float:
    """The loss as a float; 0 where the step returns nothing of the kind."""
    if isinstance(loss, Tensor):
        return float(loss.detach().float().mean()) if loss.numel() else 0.0
    return float(loss) if isinstance(loss, int | float) else 0.0


def _infinite_by_nature(model: nn.Module, extra: Iterable[tuple[str, Any]]) -> frozenset[str]:
    """Buffers and further state that hold an Inf before the step: masks, a best loss so far."""
    state = [entry for entry in _state(model, (), extra) if entry[0] != "parameter"]
    return frozenset(f"{place}:{name}" for place, name, t in state if nonfinite_kind(t) == "inf")


def _left_behind(
    trace: OpTrace,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    extra: Iterable[tuple[str, Any]],
    masks: frozenset[str],
) -> list[Damage]:
    """What is non-finite in the state after the step, and was not so by nature before."""
    state = _state(model, optimizers, extra)
    found = [damage for place, name, t in state for damage in _damage(trace, place, name, t)]
    return [d for d in found if d.kind == "nan" or f"{d.place}:{d.name}" not in masks]
