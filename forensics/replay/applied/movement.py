"""What an optimizer's step does to the parameters: gradients at entry, movement, expected movement.

The expected movement of a half-precision parameter is that of a twin: the same optimizer, the same
state and gradients, in float32, on a sample of the elements. What the twin moves and the parameter
does not was lost to rounding.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.replay.tracing.tensor_stats import is_float

SAMPLED = 1 << 16
"""Elements of a parameter that are looked at, evenly spread."""
_HALVES = (torch.float16, torch.bfloat16)
_ELEMENTWISE = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax),
    *(torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.ASGD),
)
"""Optimizers that treat each element by itself and keep everything in ``state``."""
_COMPENSATED = ("master", "kahan", "compensation", "shift", "residual", "fp32")
"""Parts of state names by which an optimizer says that it keeps what rounding takes away."""


@dataclass
class ParameterLook:
    """One parameter at the entry to its optimizer's step, or after it.

    Attributes:
        parameter: itself.
        values: a sample, shape (elements,), copied.
        grad_l2: L2 norm of its gradient; 0 without one.
        grad_zero: share of the gradient's elements that are exactly 0; 1 without one.
        expected: the sample after the step of a float32 twin; None where no twin was made.
        start: the twin's sample before it.
    """

    parameter: Tensor
    values: Tensor
    grad_l2: float
    grad_zero: float
    expected: Tensor | None = None
    start: Tensor | None = None


@dataclass
class Rounding:
    """What rounding took from one parameter's update.

    Attributes:
        parameter: which.
        expected: sampled elements that the twin moves.
        unmoved: how many of them did not move.
        largest: largest movement that the twin makes.
        ulp: spacing of the parameter's dtype at its largest magnitude.
    """

    parameter: Tensor
    expected: int
    unmoved: int
    largest: float
    ulp: float


@torch.no_grad()
def look_at(optimizer: Optimizer) -> dict[int, ParameterLook]:
    """The parameters of an optimizer that have a gradient, by id, as they are now."""
    looks: dict[int, ParameterLook] = {}
    for parameter in _parameters(optimizer):
        grad = parameter.grad
        if grad is None or not is_float(parameter):
            continue
        values = grad.detach().coalesce().values() if grad.is_sparse else grad
        looks[id(parameter)] = ParameterLook(
            parameter=parameter,
            values=_sample(parameter).clone(),
            grad_l2=float(torch.linalg.vector_norm(values, dtype=_wide(values))),
            grad_zero=1.0 - int(values.count_nonzero()) / max(1, values.numel()),
        )
    return looks


@torch.no_grad()
def enter(optimizer: Optimizer) -> dict[int, ParameterLook]:
    """The same at the entry to the step, with what a float32 twin would make of it."""
    looks = look_at(optimizer)
    half = [look for look in looks.values() if look.parameter.dtype in _HALVES]
    half = [look for look in half if not _keeps_more(optimizer, look.parameter)]
    if half and type(optimizer) in _ELEMENTWISE:
        for look, (start, expected) in zip(half, _twin_step(optimizer, half), strict=True):
            look.start, look.expected = start, expected
    return looks


@torch.no_grad()
def rounding(entry: dict[int, ParameterLook], left: dict[int, ParameterLook]) -> list[Rounding]:
    """What rounding took, for every parameter that has a twin."""
    found = []
    for key, look in entry.items():
        if look.expected is None or look.start is None or key not in left:
            continue
        moves = look.expected - look.start
        wanted = (moves != 0) & torch.isfinite(moves)
        unmoved = wanted & (left[key].values == look.values)
        size = float(look.values.float().abs().max())
        found.append(
            Rounding(
                parameter=look.parameter,
                expected=int(wanted.count_nonzero()),
                unmoved=int(unmoved.count_nonzero()),
                largest=float(moves[wanted].abs().max()) if bool(wanted.any()) else 0.0,
                ulp=size * torch.finfo(look.parameter.dtype).eps,
            )
        )
    return found


def _twin_step(optimizer: Optimizer, looks: Sequence[ParameterLook]) -> list[tuple[Tensor, Tensor]]:
    """Step a float32 copy of the optimizer on samples; the optimizer itself is left alone."""
    scale = getattr(optimizer, "grad_scale", None)
    twins: dict[int, Tensor] = {}
    state: defaultdict[Tensor, Any] = defaultdict(dict)
    for look in looks:
        parameter, grad = look.parameter, look.parameter.grad
        assert grad is not None
        twin = look.values.float().requires_grad_()
        twin.grad = _sample(grad.to_dense() if grad.is_sparse else grad).float()
        if scale is not None:
            twin.grad /= scale
        twins[id(parameter)] = twin
        held = optimizer.state.get(parameter, {})
        state[twin] = {key: _state_of(value, parameter) for key, value in held.items()}
    starts = [twins[id(look.parameter)].detach().clone() for look in looks]
    _step(_twin_of(optimizer, twins, state))
    ends = [twins[id(look.parameter)].detach() for look in looks]
    return list(zip(starts, ends, strict=True))


def _twin_of(optimizer: Optimizer, twins: dict[int, Tensor], state: Any) -> Optimizer:
    twin = copy.copy(optimizer)
    for name in ("step", "grad_scale", "found_inf"):
        vars(twin).pop(name, None)
    plain = {"fused": False, "foreach": False, "capturable": False}
    twin.param_groups = [
        {
            **group,
            **{key: value for key, value in plain.items() if key in group},
            "params": [twins[id(p)] for p in group["params"] if id(p) in twins],
        }
        for group in optimizer.param_groups
    ]
    twin.state = state
    twin._optimizer_step_pre_hooks = OrderedDict()
    twin._optimizer_step_post_hooks = OrderedDict()
    return twin


def _step(twin: Optimizer) -> None:
    """The optimizer's own step without the hooks that torch wraps around it."""
    step = type(twin).step
    getattr(step, "__wrapped__", step)(twin)


def _state_of(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return copy.copy(value)
    if value.shape != parameter.shape:
        return value.detach().cpu().clone() if value.numel() == 1 else value.detach().clone()
    sample = _sample(value)
    return sample.float() if sample.is_floating_point() else sample.clone()


def _keeps_more(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Does the optimizer keep a wider copy of the parameter, or what rounding took?"""
    held = optimizer.state.get(parameter, {})
    for key, value in held.items():
        if any(word in str(key).lower() for word in _COMPENSATED):
            return True
        wide = isinstance(value, Tensor) and value.dtype not in _HALVES
        if (
            wide
            and value.shape == parameter.shape
            and torch.equal(value.to(parameter.dtype), parameter)
        ):
            return True
    return False


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _sample(tensor: Tensor) -> Tensor:
    """Every n-th element, flat; a view where that can be."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def state_counts(optimizer: Optimizer) -> dict[int, float]:
    """The step counts of an optimizer's states, by id of the parameter; -1 without a count."""
    return {id(p): _count(state) for p, state in optimizer.state.items() if state}


def first_state(optimizer: Optimizer) -> tuple[int, float]:
    """How many parameters have a state, and the step count of the first; -1 where it has none.

    A count that lies on a device is not read.
    """
    first: Any = next(iter(optimizer.state.values()), {})
    count = first.get("step", -1.0) if hasattr(first, "get") else -1.0
    if isinstance(count, Tensor):
        count = float(count) if count.device.type == "cpu" else -1.0
    return len(optimizer.state), float(count)


def _count(state: Any) -> float:
    step = state.get("step") if hasattr(state, "get") else None
    return float(step) if isinstance(step, int | float | Tensor) else -1.0
