"""The state before a step, whole: what a checkpoint holds, and what lies beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from forensics.errors import InputError
from forensics.record.portable import NotPortableError, portable
from forensics.record.recipe import Recipe, Training
from forensics.record.training_state import gather_state

BEYOND = "beyond"
"""Key of what a checkpoint does not hold."""


def whole_state(
    training: Training, recipe: Recipe, step: int, *, gradients: bool
) -> tuple[dict[str, Any], list[str]]:
    """As ``gather_state``, and under ``beyond`` what a step can also depend on.

    These are non-persistent buffers, the modes of the modules, plain values that the recipe keeps
    on itself, state without ``state_dict``, how far the loss scaler is between ``unscale_`` and
    ``update``, and gradients where they are wanted.

    Returns:
        The state, and one clause for each part that is missing from it.
    """
    state, missing = gather_state(training, step, {})
    model = training.model
    saved = model.state_dict().keys()
    state[BEYOND] = {
        "buffers": {n: b.detach() for n, b in model.named_buffers() if n not in saved},
        "modes": [module.training for module in model.modules()],
        "recipe": _plain(vars(recipe)),
        "extra": _plain({n: v for n, v in training.extra.items() if not hasattr(v, "state_dict")}),
        "stages": _stages(training),
        "gradients": {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        if gradients
        else {},
    }
    kept = state[BEYOND]["extra"]
    missing = [line for line in missing if line.split(":")[0].removeprefix("extra.") not in kept]
    return state, missing


@torch.no_grad()
def restore_beyond(training: Training, recipe: Recipe, state: Mapping[str, Any]) -> None:
    """Put back what lies beyond a checkpoint; the checkpoint itself is in place already.

    Raises:
        InputError: it is of another training.
    """
    try:
        _put(training, recipe, state[BEYOND])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"does not fit this recipe ({line})", where="state.pt") from error


def _put(training: Training, recipe: Recipe, beyond: Mapping[str, Any]) -> None:
    model = training.model
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for name, value in beyond["buffers"].items():
        buffers[name].copy_(value)
    for module, mode in zip(model.modules(), beyond["modes"], strict=True):
        module.training = bool(mode)
    for name, value in beyond["gradients"].items():
        parameters[name].grad = value.to(parameters[name].device)
    for name, value in beyond["recipe"].items():
        own = not callable(getattr(type(recipe), name, None)) and not name.startswith("__")
        if own and name != "config":
            setattr(recipe, name, value)
    for name, value in beyond["extra"].items():
        _refill(training.extra.get(name), value)
    scaler = training.scaler
    for optimizer, stage in zip(training.optimizers, beyond["stages"], strict=False):
        held = scaler._per_optimizer_states[id(optimizer)]
        held["stage"] = OptState(stage["stage"])
        held["found_inf_per_device"] = {
            torch.device(device): value.to(device) for device, value in stage["found_inf"].items()
        }


def _refill(owner: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner.clear()
        owner.update(value)
    elif isinstance(owner, list):
        owner[:] = value


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values that a safe load takes."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if callable(value) or type(value).__module__.startswith("forensics."):
            continue
        try:
            found[name] = portable(value, name)
        except NotPortableError:
            continue
    return found


def _stages(training: Training) -> list[dict[str, Any]]:
    """Per optimizer, between which calls of the loss scaler it stands; empty for a disabled one."""
    scaler = training.scaler
    if scaler is None or not scaler.is_enabled():
        return []
    states = scaler._per_optimizer_states
    return [
        {
            "stage": states[id(o)]["stage"].value if id(o) in states else OptState.READY.value,
            "found_inf": {
                str(device): value
                for device, value in states[id(o)]["found_inf_per_device"].items()
            }
            if id(o) in states
            else {},
        }
        for o in training.optimizers
    ]
