"""In which mode, training or evaluation, a step computed: where a module's mode matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Modes = dict[str, bool]
"""By name of the module: was it in training mode."""
_SHOWN = 3


@contextmanager
def watching_modes(model: nn.Module) -> Iterator[Modes]:
    """Note the modes in which the model's forward ran with gradients, while the context lasts.

    Args:
        model: whose calls are watched; of several calls the last one is kept.

    Yields:
        Filled by each call: dropouts with a probability above 0, and norms that keep statistics.
        A validation under ``no_grad`` is left out.
    """
    modes: Modes = {}

    def note(owner: nn.Module, inputs: Any) -> None:
        del inputs
        if torch.is_grad_enabled():
            modes.update({name: m.training for name, m in owner.named_modules() if _matters(m)})

    handle = model.register_forward_pre_hook(note)
    try:
        yield modes
    finally:
        handle.remove()


def mode_note(seen: Mapping[int, Modes]) -> str:
    """A sentence where a module's mode is not the same in all steps; else empty.

    Args:
        seen: the modes by step.
    """
    order = sorted(step for step, modes in seen.items() if modes)
    for earlier, later in pairwise(order):
        was, now = seen[earlier], seen[later]
        changed = [name for name in was if name in now and was[name] != now[name]]
        if not changed:
            continue
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        first, second = (
            ("training", "evaluation") if was[changed[0]] else ("evaluation", "training")
        )
        return (
            f"{', '.join(changed[:_SHOWN])}{more} computed in {first} mode in step {earlier:,} and "
            f"in {second} mode in step {later:,}: was model.train() or eval() called in between?"
        )
    return ""


def _matters(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _NormBase) and module.track_running_stats
