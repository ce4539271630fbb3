"""An exponential moving average of a model's parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from forensics.errors import InputError, UsageError


class ExponentialMovingAverage:
    """``shadow ← decay · shadow + (1 − decay) · value``, of floating parameters and buffers alike.

    Other buffers are copied: counters, and masks (their Inf − Inf would be NaN). Half-precision
    values are averaged in float32: with a decay of 0.9999 an average in bfloat16 would never move.

    Args:
        model: whose values are averaged; the average starts as a copy of them.
        decay: in [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise UsageError(f"an EMA decay of {decay:g} is not in [0, 1)", where="ema_decay")
        self.decay = decay
        self.shadow: dict[str, Tensor] = {
            name: value.detach().to(_wide(value), copy=True) for name, value in _values(model)
        }
        masks = {n for n, buffer in model.named_buffers() if not bool(buffer.isfinite().all())}
        self._copied = {n for n, value in _values(model) if n in masks or not _averaged(value)}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model; call it only after a step that was taken."""
        floating: list[tuple[Tensor, Tensor]] = []
        for name, value in _values(model):
            shadow = self.shadow[name]
            if name in self._copied:
                shadow.copy_(value)
            else:
                floating.append((shadow, value.detach().to(shadow.dtype)))
        if floating:
            shadows, values = map(list, zip(*floating, strict=True))
            torch._foreach_lerp_(shadows, values, 1.0 - self.decay)

    @contextmanager
    def apply(self, model: nn.Module) -> Iterator[None]:
        """The averaged values in the model while the context lasts, then its own again."""
        own = {name: value.detach().clone() for name, value in _values(model)}
        self._copy_into(model, self.shadow)
        try:
            yield
        finally:
            self._copy_into(model, own)

    @torch.no_grad()
    def _copy_into(self, model: nn.Module, values: Mapping[str, Tensor]) -> None:
        for name, target in _values(model):
            target.copy_(values[name])

    def state_dict(self) -> dict[str, Any]:
        """``{"decay", "shadow": {name: tensor}}``; the tensors are not copied."""
        return {"decay": self.decay, "shadow": dict(self.shadow)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved average; InputError where the names are not this model's."""
        if state["shadow"].keys() != self.shadow.keys():
            odd = sorted(state["shadow"].keys() ^ self.shadow.keys())
            raise InputError(f"the saved EMA is of another model: {odd[0]}", where="ema")
        self.decay = state["decay"]
        for name, shadow in self.shadow.items():
            shadow.copy_(state["shadow"][name])


def _values(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _averaged(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _wide(value: Tensor) -> torch.dtype:
    narrow = value.dtype.is_floating_point and value.dtype.itemsize < 4
    return torch.float32 if narrow else value.dtype
