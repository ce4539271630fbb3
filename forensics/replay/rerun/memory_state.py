"""A training's whole state kept in memory, so that one step can be run again and again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.recipe import Recipe, Training
from forensics.record.rng import restore_rng, rng_state

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class MemoryState:
    """Everything that one step can change, copied.

    More than a checkpoint holds: gradients that a loop leaves behind, non-persistent buffers, how
    far the loss scaler is between ``unscale_`` and ``update``, and plain values that the recipe
    keeps on itself.

    Attributes:
        step: the state is the one before this step.
        training: whose state it is: another one may have been built since.
        trained: its recipe.
        parts: the owners and the copies of what they hold.
    """

    step: int
    training: Training
    trained: Recipe
    parts: tuple[tuple[Any, Any], ...]
    recipe: Mapping[str, Any]
    scaler: Any
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[Any, ...]
    rng: Mapping[str, Any]


@torch.no_grad()
def capture(training: Training, recipe: Recipe, step: int, *, gradients: bool) -> MemoryState:
    """Copy the state before ``step``; tensors stay on their device.

    Args:
        training: as it stands.
        recipe: what is trained; plain values that it keeps on itself are copied.
        step: the next one.
        gradients: copy them too; the reference step drops them first thing, so needs none.
    """
    owners = [training.model, *training.optimizers, *training.schedulers]
    owners += [training.scaler, training.ema, *training.extra.values()]
    parts = [(owner, _copy_of(owner, gradients)) for owner in owners if owner is not None]
    return MemoryState(
        step=step,
        training=training,
        trained=recipe,
        parts=tuple(parts),
        recipe={name: _plain_copy(value) for name, value in vars(recipe).items()},
        scaler=training.scaler,
        optimizers=tuple(training.optimizers),
        schedulers=tuple(training.schedulers),
        rng=rng_state(),
    )


@torch.no_grad()
def put_back(training: Training, recipe: Recipe, state: MemoryState) -> None:
    """Bring the training to a captured state; the state can be used again."""
    training.scaler = state.scaler
    training.optimizers = list(state.optimizers)
    training.schedulers = list(state.schedulers)
    for owner, copied in state.parts:
        _put(owner, copied)
    for name in vars(recipe).keys() - state.recipe.keys():
        delattr(recipe, name)
    for name, value in state.recipe.items():
        setattr(recipe, name, _plain_copy(value))
    restore_rng(state.rng)


@torch.no_grad()
def put_back_update(training: Training, state: MemoryState, *, moments: bool = True) -> None:
    """Undo the update of a step, as a guard that withheld it would have.

    Parameters, optimizer states and the EMA go back to the captured state; buffers, loss scale,
    learning rates, schedule, extras and random numbers stay as the step left them.

    Args:
        training: after the step.
        state: before it.
        moments: put the optimizer states back, too.
    """
    for owner, copied in state.parts:
        if owner is training.ema:
            _put(owner, copied)
        elif isinstance(owner, Optimizer) and moments:
            owner.state.clear()
            owner.state.update({p: _plain_copy(held) for p, held in copied[1].items()})
        elif owner is training.model:
            for name, parameter in training.model.named_parameters():
                _assign(parameter, copied[0][name])


def _copy_of(owner: Any, gradients: bool) -> Any:
    if isinstance(owner, nn.Module):
        return _module_copy(owner, gradients)
    if isinstance(owner, Optimizer):
        groups = [
            {key: _plain_copy(value) for key, value in group.items() if key != "params"}
            for group in owner.param_groups
        ]
        state = {p: {k: _plain_copy(v) for k, v in held.items()} for p, held in owner.state.items()}
        return groups, state
    if isinstance(owner, torch.amp.GradScaler):
        return {name: copy.deepcopy(value) for name, value in vars(owner).items()}
    if hasattr(owner, "state_dict"):
        return copy.deepcopy(owner.state_dict())
    return _plain_copy(owner)


def _put(owner: Any, copied: Any) -> None:
    if isinstance(owner, nn.Module):
        _put_module(owner, copied)
    elif isinstance(owner, Optimizer):
        groups, state = copied
        for group, saved in zip(owner.param_groups, groups, strict=True):
            for key in group.keys() - saved.keys() - {"params"}:
                del group[key]
            group.update({key: _plain_copy(value) for key, value in saved.items()})
        owner.state.clear()
        owner.state.update({p: _plain_copy(held) for p, held in state.items()})
    elif isinstance(owner, torch.amp.GradScaler):
        _put_scaler(owner, copied)
    elif hasattr(owner, "load_state_dict"):
        owner.load_state_dict(copy.deepcopy(copied))
    elif isinstance(owner, dict):
        owner.clear()
        owner.update(_plain_copy(copied))
    elif isinstance(owner, list):
        owner[:] = _plain_copy(copied)


def _put_scaler(scaler: Any, copied: Mapping[str, Any]) -> None:
    """In place where it is a tensor: others hold on to the scale's own tensor."""
    for name, value in copied.items():
        held = getattr(scaler, name, None)
        if isinstance(value, Tensor) and isinstance(held, Tensor):
            held.copy_(value)
        elif isinstance(held, Tensor) and value is None and name == "_scale":
            held.fill_(copied["_init_scale"])  # not made yet then: it began at the initial scale
        elif isinstance(held, Tensor) and value is None and name == "_growth_tracker":
            held.fill_(copied["_init_growth_tracker"])
        else:
            setattr(scaler, name, copy.deepcopy(value))


_Module = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], list[bool]]


def _module_copy(module: nn.Module, gradients: bool) -> _Module:
    values = {name: p.detach().clone() for name, p in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    held = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    return values, buffers, held if gradients else {}, [m.training for m in module.modules()]


def _put_module(module: nn.Module, copied: _Module) -> None:
    values, buffers, gradients, modes = copied
    for name, parameter in module.named_parameters():
        _assign(parameter, values[name])
        grad = gradients.get(name)
        parameter.grad = None if grad is None else grad.clone()
    for name, buffer in module.named_buffers():
        if name in buffers:
            _assign(buffer, buffers[name])
    for part, mode in zip(module.modules(), modes, strict=True):
        part.training = mode


def _assign(target: Tensor, value: Tensor) -> None:
    """In place, unless a change has given the target another dtype meanwhile."""
    if target.dtype == value.dtype and target.shape == value.shape:
        target.data.copy_(value)
    else:
        target.grad = None
        target.data = value.clone()


def _plain_copy(value: Any) -> Any:
    """A copy of plain values and tensors; what holds anything else is kept as it is."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, _PLAIN):
        return value
    if type(value) is dict:
        return {key: _plain_copy(entry) for key, entry in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_plain_copy(entry) for entry in value)
    return value
