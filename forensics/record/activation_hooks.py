"""Activation statistics per module: hooks that are there only in the steps that want them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from forensics.record.local_part import local_part
from forensics.record.plain_names import named_modules
from forensics.record.readback import read_scalars
from forensics.runlog.activations import ACTIVATION_STATISTICS, GRAD_STD

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class ActivationHooks:
    """Takes mean, std, abs-max, zero share and non-finite count of every module's output.

    Of an output spread over several ranks they are of the part that this rank holds. Of a module
    that runs several times in a step (micro-batches, tied layers) the first run counts. Containers
    are left out: their output is their last member's. Where a module returns several tensors, the
    first floating one is meant.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (name, module)
            for name, module in named_modules(model)
            if name and not isinstance(module, _CONTAINERS)
        ]
        self._hooks: list[RemovableHandle] = []
        self._taken: dict[str, list[Tensor]] = {}
        self._grad_std: dict[str, Tensor] = {}

    def arm(self, *, gradients: bool) -> None:
        """Watch the coming step; with ``gradients`` also what backward brings to each output."""
        self.disarm()
        self._taken, self._grad_std = {}, {}
        self._hooks = [
            module.register_forward_hook(partial(self._forward, name, gradients))
            for name, module in self._modules
        ]

    @property
    def armed(self) -> bool:
        """Is the step under way watched?"""
        return bool(self._hooks)

    def disarm(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def collect(self, scale: float) -> tuple[list[str], dict[str, list[Any]]]:
        """Module names in forward order and their statistics, in one blocking read.

        Args:
            scale: the loss scale of the step, divided out of the gradients.
        """
        self.disarm()
        names = list(self._taken)
        flat = [statistic for name in names for statistic in self._taken[name]]
        values = read_scalars([*flat, *self._grad_std.values()])
        width = len(ACTIVATION_STATISTICS)
        rows = [values[i * width : (i + 1) * width] for i in range(len(names))]
        stats: dict[str, list[Any]] = {
            statistic: [row[j] for row in rows] for j, statistic in enumerate(ACTIVATION_STATISTICS)
        }
        stats["nonfinite"] = [int(count) for count in stats["nonfinite"]]
        if self._grad_std:
            of = dict(zip(self._grad_std, values[len(flat) :], strict=True))
            stats[GRAD_STD] = [of[name] / scale if name in of else None for name in names]
        self._taken, self._grad_std = {}, {}
        return names, stats

    def _forward(
        self, name: str, gradients: bool, module: nn.Module, args: Any, output: Any
    ) -> None:
        tensor = next(_floating(output), None)
        if tensor is None or name in self._taken or (part := local_part(tensor)).numel() == 0:
            return
        self._taken[name] = _statistics(part.detach())
        if gradients and tensor.requires_grad:
            tensor.register_hook(partial(self._backward, name))

    def _backward(self, name: str, grad: Tensor) -> None:
        part = local_part(grad).detach()
        self._grad_std.setdefault(name, part.float().std(correction=0))


@torch.no_grad()
def _statistics(value: Tensor) -> list[Tensor]:
    """In the order of ``ACTIVATION_STATISTICS``, each of shape ()."""
    wide = value.float()
    std, mean = torch.std_mean(wide, correction=0)
    nonfinite = wide.isfinite().logical_not_().sum().float()
    return [mean, std, wide.abs().amax(), (wide == 0).float().mean(), nonfinite]


def _floating(output: Any) -> Iterator[Tensor]:
    """The floating tensors of a module's output, outermost first."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _floating(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _floating(value)
