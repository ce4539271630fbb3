"""The loss scale: what ``torch.amp.GradScaler`` lacks, and the one place that looks inside it.

GradScaler has no floor (144 overflows in a row take 2^16 to 2^-128, where 1/scale is Inf, no
overflow is seen any more and the next step writes NaN into the weights), and its ``update()``
raises where nothing was unscaled, so a step skipped before backward must back the scale off itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from forensics.errors import UsageError
from forensics.record.config import ScalerConfig
from forensics.runlog.manifest import ScalerPolicy


def make_scaler(config: ScalerConfig, device: torch.device, *, enabled: bool) -> GradScaler:
    """A GradScaler on ``device``; a disabled one lets every precision share its call sites."""
    if enabled and config.init_scale < config.floor:
        raise UsageError(
            f"the initial loss scale {config.init_scale:g} is below its floor {config.floor:g}",
            where="scaler",
            hint="raise init_scale or lower floor",
        )
    return GradScaler(
        device.type,
        init_scale=config.init_scale,
        growth_factor=config.growth_factor,
        backoff_factor=config.backoff_factor,
        growth_interval=config.growth_interval,
        enabled=enabled,
    )


def policy_of(scaler: GradScaler, floor: float) -> ScalerPolicy:
    """What ``run.json`` says about a scaler."""
    if not scaler.is_enabled():
        return ScalerPolicy()
    return ScalerPolicy(
        enabled=True,
        init_scale=float(scaler._init_scale),
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
        floor=floor,
    )


def scale_tensor(scaler: GradScaler, device: torch.device) -> Tensor:
    """The scale in force, shape (), float32, not copied to the host; 1 for a disabled scaler.

    GradScaler makes its tensors at the first ``scale()``; this call makes them where needed.
    """
    if not scaler.is_enabled():
        return torch.ones((), device=device)
    if scaler._scale is None:
        scaler.scale(torch.zeros((), device=device))
    assert scaler._scale is not None
    return scaler._scale


def back_off(scaler: GradScaler, scale: float, floor: float) -> None:
    """Lower the scale and restart the growth count, as ``update()`` does after an overflow.

    Args:
        scaler: has scaled a loss before; a disabled one is left alone.
        scale: the scale in force.
        floor: the least scale.
    """
    if scaler.is_enabled():
        scaler.update(max(scale * scaler.get_backoff_factor(), floor))
        assert scaler._growth_tracker is not None
        scaler._growth_tracker.zero_()  # update(new_scale) leaves it as it is


def hold_floor(scaler: GradScaler, scale: float, floor: float) -> None:
    """After an ``update()`` that backed off from ``scale``: not below the floor."""
    if scaler.is_enabled() and scale * scaler.get_backoff_factor() < floor:
        scaler.update(floor)


def found_infs(scaler: GradScaler, optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """What ``unscale_`` found, one tensor a device: above 0 where a gradient was non-finite.

    ``update()`` forgets it, and whether ``step()`` was called does not tell: a fused optimizer is
    always called and skips inside its kernel.
    """
    if not scaler.is_enabled():
        return []
    states = [scaler._per_optimizer_states.get(id(optimizer)) for optimizer in optimizers]
    return [found for state in states if state for found in state["found_inf_per_device"].values()]


def grads_are_scaled(scaler: GradScaler, optimizers: Iterable[Optimizer]) -> bool:
    """Is any optimizer's gradient still multiplied by the scale (``unscale_`` not called yet)?"""
    if not scaler.is_enabled():
        return False
    states = [scaler._per_optimizer_states.get(id(optimizer)) for optimizer in optimizers]
    return any(state is None or state["stage"] is OptState.READY for state in states)
