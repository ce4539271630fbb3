"""The names that a model's tensors have without the wrappers around it or within it.

``torch.compile``, DataParallel, DistributedDataParallel, FSDP, activation checkpointing and Fabric
each put a level into every name. A record under plain names can be compared with a run that had no
wrapper, and its states load into the model that a recipe builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

_ALWAYS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Levels that only a wrapper makes, whatever holds them."""
_AS_MODULE = ("DataParallel", "DistributedDataParallel", "DeepSpeedEngine")
"""Classes whose ``module`` is the wrapped one; elsewhere ``module`` is a name like any other."""


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """``model.named_modules()`` by plain names; of a wrapper and what it wraps, the latter."""
    names = PlainNames(model)
    for name, module in model.named_modules():
        if not _level(module):
            yield names(name), module


def named_parameters(
    model: nn.Module, *, remove_duplicate: bool = True
) -> Iterator[tuple[str, Tensor]]:
    """``model.named_parameters()`` by plain names; of ``fully_shard`` the ones that last.

    After a forward, until the next backward, a module may hold whole parameters in their place:
    their memory is taken away at any time.
    """
    names, lasting = PlainNames(model), _lasting(model)
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        yield names(name), lasting.get(id(parameter), parameter)


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """``model.named_buffers()`` by plain names."""
    names = PlainNames(model)
    for name, buffer in model.named_buffers():
        yield names(name), buffer


class PlainNames:
    """Turns the dotted names of one model into plain ones.

    Args:
        model: whose names they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._levels = {
            f"{path}.{level}" if path else level
            for path, module in model.named_modules()
            if (level := _level(module))
        }

    def __call__(self, name: str) -> str:
        """The name of a module, parameter or buffer without the levels of wrappers."""
        if not self._levels:
            return name
        parts = name.split(".")
        whole = [".".join(parts[: i + 1]) for i in range(len(parts))]
        kept = (p for p, path in zip(parts, whole, strict=True) if path not in self._levels)
        return ".".join(kept)


class PlainState:
    """A model's state under plain names, out of it and back into it.

    Args:
        model: wrapped or not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._names = model, PlainNames(model)

    def state_dict(self) -> dict[str, Any]:
        """The model's state; its tensors are not copied."""
        return {self._names(name): value for name, value in self._model.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the model; RuntimeError, as torch raises it, where names or shapes differ."""
        wrapped = {self._names(name): name for name in self._model.state_dict()}
        self._model.load_state_dict({wrapped.get(name, name): v for name, v in state.items()})


def _lasting(model: nn.Module) -> dict[int, Tensor]:
    """Of each parameter that ``fully_shard`` has put together, by ``id``, the sharded one."""
    found: dict[int, Tensor] = {}
    for module in model.modules():
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            state = getattr(module, "_get_fsdp_state", lambda: None)()
            for group in getattr(state, "_fsdp_param_groups", ()):
                for member in getattr(group, "fsdp_params", ()):
                    whole = getattr(member, "_unsharded_param", None)
                    found[id(whole)] = member.sharded_param
    found.pop(id(None), None)
    return found


def _level(module: nn.Module) -> str:
    """What a wrapper calls the module that it wraps; empty for any other module."""
    for level in _ALWAYS:
        if level in module._modules:
            return level
    if any(kind.__name__ in _AS_MODULE for kind in type(module).__mro__):
        return "module"
    return ""
