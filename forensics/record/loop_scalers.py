"""The GradScalers of somebody's loop: one, several or none, looked at and never touched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from forensics.record.loss_scale import found_infs


def as_scalers(scaler: Any) -> list[GradScaler]:
    """A scaler, a sequence of them or None as a list.

    A class around a GradScaler that keeps it as ``_scaler`` (timm's and MAE's do) stands for it.
    """
    given = list(scaler) if isinstance(scaler, list | tuple) else [scaler]
    return [getattr(one, "_scaler", one) for one in given if one is not None]


class LoopScalers:
    """What all scalers of a loop together say of its optimizers.

    Args:
        scalers: those of the loop; disabled ones count as none.
        device: of the parameters.
    """

    def __init__(self, scalers: Sequence[GradScaler], device: torch.device) -> None:
        self._scalers = [scaler for scaler in scalers if scaler.is_enabled()]
        self._one = torch.ones((), device=device)
        self._known: set[int] = set()

    def __bool__(self) -> bool:
        """Is any of them enabled?"""
        return bool(self._scalers)

    def scales(self) -> list[Tensor]:
        """The scales in force, shape (), the first scaler's first; none where nothing is scaled.

        A scaler that has never scaled a loss has no scale on the device yet: its first one is told.
        """
        return [
            self._one * scaler._init_scale if scaler._scale is None else scaler._scale
            for scaler in self._scalers
        ]

    @property
    def used(self) -> bool:
        """Has any of them ever scaled a loss?"""
        return any(scaler._scale is not None for scaler in self._scalers)

    def found_infs(self, optimizers: Iterable[Optimizer]) -> tuple[list[int], list[Tensor]]:
        """The found_inf tensors of the optimizers that were unscaled, and the id of each's own."""
        pairs = [
            (id(optimizer), found)
            for optimizer in optimizers
            for scaler in self._scalers
            for found in found_infs(scaler, [optimizer])
        ]
        return [owner for owner, _ in pairs], [found for _, found in pairs]

    def meet(self, optimizer: Optimizer) -> None:
        """Remember an optimizer that a scaler has under its hands."""
        if self._stages(optimizer):
            self._known.add(id(optimizer))

    def knows_any(self) -> bool:
        """Has any optimizer been unscaled or stepped by a scaler so far?"""
        return bool(self._known)

    def still_scaled(self, optimizer: Optimizer) -> bool:
        """Are its gradients multiplied by a scale, as far as can be told?

        Where scalers care for other optimizers and never for this one, its loss is not scaled.
        """
        stages = self._stages(optimizer)
        if stages:
            return all(stage is OptState.READY for stage in stages)
        elsewhere = bool(self._known) and id(optimizer) not in self._known
        return self.used and not elsewhere

    def awaits_update(self, optimizer: Optimizer) -> bool:
        """Has a scaler stepped it without an ``update()`` since?"""
        return OptState.STEPPED in self._stages(optimizer)

    def _stages(self, optimizer: Optimizer) -> list[OptState]:
        states = [scaler._per_optimizer_states.get(id(optimizer)) for scaler in self._scalers]
        return [state["stage"] for state in states if state]
