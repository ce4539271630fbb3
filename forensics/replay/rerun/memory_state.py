"""A training's whole state kept in memory, so that one step can be run again and again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.recipe import Recipe, Training
from forensics.record.rng import restore_rng, rng_state
from forensics.replay.rerun.tensor_file import FiledTensor, tensor_file

_Keep = Callable[[Tensor], Tensor | FiledTensor]
"""Copies a tensor to where a state is kept."""

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
    """Copy the state before ``step``.

    The tensors of a large state are copied to a temporary file (``TMPDIR`` says where): beside the
    training itself there is no room for a second one in memory. Others stay on their device.

    Args:
        training: as it stands.
        recipe: what is trained; plain values that it keeps on itself are copied.
        step: the next one.
        gradients: copy them too; the reference step drops them first thing, so needs none.
    """
    owners = [training.model, *training.optimizers, *training.schedulers]
    owners += [training.scaler, training.ema, *training.extra.values()]
    file = tensor_file(_bytes_held(training, gradients))
    keep = _cloned if file is None else file.keep
    parts = [(owner, _copy_of(owner, gradients, keep)) for owner in owners if owner is not None]
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


def let_go(training: Training) -> None:
    """Free what a training holds beside its weights, where another one is about to be built.

    A state that was captured of it puts all of that back.
    """
    training.model.zero_grad(set_to_none=True)
    for optimizer in training.optimizers:
        optimizer.state.clear()


def _bytes_held(training: Training, gradients: bool) -> int:
    """Bytes of the tensors that a copy of the state takes, nearly."""
    parameters = list(training.model.parameters())
    held = [*parameters, *training.model.buffers()]
    if gradients:
        held += [p.grad for p in parameters if p.grad is not None]
    for optimizer in training.optimizers:
        for state in optimizer.state.values():
            held += [value for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _copy_of(owner: Any, gradients: bool, keep: _Keep) -> Any:
    if isinstance(owner, nn.Module):
        return _module_copy(owner, gradients, keep)
    if isinstance(owner, Optimizer):
        groups = [
            {key: _plain_copy(value) for key, value in group.items() if key != "params"}
            for group in owner.param_groups
        ]
        state = {p: _plain_copy(held, keep) for p, held in owner.state.items()}
        return groups, state
    if isinstance(owner, torch.amp.GradScaler):
        return {name: copy.deepcopy(value) for name, value in vars(owner).items()}
    if hasattr(owner, "state_dict"):
        return _deep_copy(owner.state_dict(), keep)
    return _plain_copy(owner, keep)


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
        owner.load_state_dict(_deep_copy(copied, _cloned))
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


_Tensors = dict[str, Tensor | FiledTensor]
_Module = tuple[_Tensors, _Tensors, _Tensors, list[bool]]


def _module_copy(module: nn.Module, gradients: bool, keep: _Keep) -> _Module:
    values = {name: keep(p) for name, p in module.named_parameters()}
    buffers = {name: keep(b) for name, b in module.named_buffers()}
    held = {
        n: keep(p.grad) for n, p in module.named_parameters() if gradients and p.grad is not None
    }
    return values, buffers, held, [m.training for m in module.modules()]


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


def _assign(target: Tensor, value: Tensor | FiledTensor) -> None:
    """In place, unless a change has given the target another dtype meanwhile."""
    if target.dtype != value.dtype or target.shape != value.shape:
        target.grad = None
        target.data = value.clone()
    elif isinstance(value, FiledTensor):
        value.copy_to(target.data)
    else:
        target.data.copy_(value)


def _cloned(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _plain_copy(value: Any, keep: _Keep = _cloned) -> Any:
    """A copy of plain values and tensors; what holds anything else is kept as it is."""
    if isinstance(value, FiledTensor):
        return value.clone()
    if isinstance(value, Tensor):
        return keep(value)
    if isinstance(value, _PLAIN):
        return value
    if type(value) is dict:
        return {key: _plain_copy(entry, keep) for key, entry in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_plain_copy(entry, keep) for entry in value)
    return value


def _deep_copy(value: Any, keep: _Keep) -> Any:
    """The same of a ``state_dict``, in which anything else is copied, too."""
    if isinstance(value, FiledTensor):
        return value.clone()
    if isinstance(value, Tensor):
        return keep(value)
    if type(value) is dict:
        return {key: _deep_copy(entry, keep) for key, entry in value.items()}
    return copy.deepcopy(value)
