"""One traced step: what was damaged, in order, and the birth each damage descends from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.replay.call_site import Phase
from forensics.replay.op_trace import Birth, OpTrace, tracing
from forensics.replay.tensor_stats import float_tensors, is_float, nonfinite_kind


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Something that a step left, or passed on, non-finite.

    Attributes:
        place: ``loss``, ``gradient``, ``norm``, ``parameter``, ``buffer``, ``optimizer`` or
            ``extra``.
        name: of the parameter, buffer or state; empty for the loss and the norm.
        kind: ``nan`` or ``inf``.
        birth: index of the birth it descends from; None when that is not known.
    """

    place: str
    name: str
    kind: str
    birth: int | None


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """What one traced step shows.

    Attributes:
        births: every non-finite value that came into being, in order.
        damages: in the order of the step: loss, gradients as they arrive, then what is left.
        arrival: parameters in the order their gradients arrived; a repeat is a micro-batch.
        loss: the loss the step returned, as a float; NaN where it raised.
        exception: ``Type: message`` of what the step raised, or empty.
    """

    births: tuple[Birth, ...]
    damages: tuple[Damage, ...]
    arrival: tuple[str, ...]
    loss: float
    exception: str = ""

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
) -> StepTrace:
    """Run one optimizer step under the operator trace.

    Args:
        run_step: runs the step, returns its loss (tensor or number). What it raises is recorded.
        model: the module that is trained.
        optimizers: their states are looked at before and after.
        micro_batches: the step's input; a non-finite one is a birth of its own.
        extra: further named state (nested tensors), such as an EMA.
    """
    trace = OpTrace(model)
    _take_in_leaves(trace, model, optimizers, micro_batches, extra)
    arrival: list[str] = []
    damages: list[Damage] = []
    loss: Any = float("nan")
    exception = ""
    with _gradient_hooks(model, trace, arrival, damages):
        try:
            with tracing(trace):
                loss = run_step()
        except Exception as error:  # noqa: BLE001 - whatever the user's loop raises is evidence
            exception = f"{type(error).__name__}: {error}"
    first = [] if exception else _loss_damage(trace, loss)
    left = _left_behind(trace, model, optimizers, extra)
    return StepTrace(
        births=tuple(trace.births),
        damages=(*first, *damages, *left),
        arrival=tuple(arrival),
        loss=float(loss.detach()) if isinstance(loss, Tensor) else float(loss),
        exception=exception,
    )


def _take_in_leaves(
    trace: OpTrace,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    micro_batches: Sequence[Any],
    extra: Iterable[tuple[str, Any]],
) -> None:
    """What exists before the step, most upstream first: a bad leaf comes before any operator."""
    for batch in micro_batches:
        for tensor in float_tensors(batch):
            trace.add_leaf("input", Phase.INPUT, tensor)
    for place, name, tensor in _state(model, optimizers, extra):
        label = {"parameter": "param"}.get(place, place)
        module = name.rpartition(".")[0] if place in ("parameter", "buffer") else ""
        phase = Phase.FORWARD if place in ("parameter", "buffer") else Phase.OPTIMIZER
        trace.add_leaf(f"{label}:{name}", phase, tensor, module)


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
    for name, tree in extra:
        for tensor in float_tensors(tree):
            yield "extra", name, tensor


@contextmanager
def _gradient_hooks(
    model: nn.Module, trace: OpTrace, arrival: list[str], damages: list[Damage]
) -> Iterator[None]:
    """Look at each gradient as it arrives: after the clip, innocent ones look guilty too."""

    def hook(name: str) -> Callable[[Tensor], None]:
        def look(parameter: Tensor) -> None:
            arrival.append(name)
            gradient = parameter.grad
            kind = nonfinite_kind(gradient) if is_float(gradient) and gradient is not None else ""
            if kind and gradient is not None:
                birth = trace.origin_of(gradient)
                damages.append(Damage(place="gradient", name=name, kind=kind, birth=birth))

        return look

    hooks = [
        parameter.register_post_accumulate_grad_hook(hook(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _loss_damage(trace: OpTrace, loss: Any) -> list[Damage]:
    """The loss, where it is non-finite; a plain number by way of the host's reading of it."""
    if is_float(loss):
        kind, birth = nonfinite_kind(loss), trace.origin_of(loss)
    else:
        value = float(loss)
        kind = "nan" if value != value else "inf" if value in (float("inf"), float("-inf")) else ""
        birth = trace.last_read
    return [Damage(place="loss", name="", kind=kind, birth=birth)] if kind else []


def _left_behind(
    trace: OpTrace,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    extra: Iterable[tuple[str, Any]],
) -> list[Damage]:
    """What is non-finite in the state after the step."""
    return [
        Damage(place=place, name=name, kind=kind, birth=trace.origin_of(tensor))
        for place, name, tensor in _state(model, optimizers, extra)
        if (kind := nonfinite_kind(tensor))
    ]
