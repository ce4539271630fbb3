"""One change to a training, tried by replaying it: the contexts that bring it about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.optim import Optimizer

from forensics.errors import NotReplayableError
from forensics.record.precision import AUTOCAST_DTYPE
from forensics.record.recipe import Batch, Recipe, Training
from forensics.replay.rerun.remote_batch import RemoteBatch


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a replay does otherwise than the record; by default nothing.

    Attributes:
        precision: ``fp32``, ``fp16``, ``bf16`` or ``fp64`` (no autocast, everything in float64).
        widen: under ``fp32``, weights and data that are in half precision, too.
        loss_scale: a fixed loss scale that neither grows nor backs off.
        lr_factor: every learning rate times this, while the optimizer steps.
        max_norm: clip the global L2 norm at this threshold.
        drop: by step, the samples left out, as indices over the step's micro-batches in a row.
        keep: by step, the only samples used.
    """

    precision: str | None = None
    widen: bool = False
    loss_scale: float | None = None
    lr_factor: float | None = None
    max_norm: float | None = None
    drop: Mapping[int, Sequence[int]] = field(default_factory=dict)
    keep: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @property
    def widened(self) -> torch.dtype | None:
        """What parameters, states and data are turned into; None where they stay as they are."""
        if self.precision == "fp64":
            return torch.float64
        return torch.float32 if self.widen else None


def batch_size(batch: Batch) -> int:
    """Samples of one micro-batch: dimension 0 of its first tensor; 0 where there is none."""
    if isinstance(batch, RemoteBatch):
        return batch.size
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 0
    entries = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | tuple | list):
        return next((size for entry in entries if (size := batch_size(entry))), 0)
    return 0


def select_samples(
    recipe: Recipe, batches: Sequence[Batch], step: int, changes: Changes
) -> list[Batch]:
    """The micro-batches of a step with the samples that the change leaves in.

    Raises:
        NotReplayableError: no sample is left.
    """
    return [batch for _, batch in selected(recipe, batches, step, changes)]


def selected(
    recipe: Recipe, batches: Sequence[Batch], step: int, changes: Changes
) -> list[tuple[int, Batch]]:
    """The same with the place that each micro-batch had: those without a sample are gone."""
    if step not in changes.drop and step not in changes.keep:
        return list(enumerate(batches))
    sizes = [batch_size(batch) for batch in batches]
    wanted = set(changes.keep.get(step, range(sum(sizes)))) - set(changes.drop.get(step, ()))
    chosen: list[tuple[int, Batch]] = []
    start = 0
    for place, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
        local = [i for i in range(size) if start + i in wanted]
        if len(local) == size:
            chosen.append((place, batch))
        elif local:
            remote = isinstance(batch, RemoteBatch)
            part = batch.only(local) if remote else recipe.select(batch, local)
            chosen.append((place, part))
        start += size
    if not chosen:
        raise NotReplayableError("no sample of the batch is left", where=f"step {step}")
    return chosen


def widened_batch(batch: Batch, dtype: torch.dtype) -> Batch:
    """A micro-batch with every floating tensor that is narrower in ``dtype``."""
    if isinstance(batch, Tensor):
        return batch.to(dtype) if _is_narrower(batch, dtype) else batch
    if isinstance(batch, Mapping):
        return {key: widened_batch(value, dtype) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(widened_batch(value, dtype) for value in batch)
    return batch


def _is_narrower(tensor: Tensor, dtype: torch.dtype) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize < dtype.itemsize


@torch.no_grad()
def widen(training: Training, dtype: torch.dtype) -> None:
    """Turn parameters, buffers and optimizer states that are narrower into ``dtype``, in place."""
    for parameter in training.model.parameters():
        if _is_narrower(parameter, dtype):
            parameter.grad = None
            parameter.data = parameter.data.to(dtype)
    for module in training.model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if _is_narrower(buffer, dtype):
                setattr(module, name, buffer.to(dtype))
    for optimizer in training.optimizers:
        for state in optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, Tensor) and _is_narrower(value, dtype) and key != "step":
                    state[key] = value.to(dtype)


@contextmanager
def applied(changes: Changes, training: Training, *, own_loop: bool) -> Iterator[None]:
    """The changes that work from outside the step, while the context lasts.

    The reference step takes precision and clip threshold as arguments; a loop of the recipe's own
    gets them from here.
    """
    with ExitStack() as stack:
        if changes.lr_factor is not None:
            stack.enter_context(_learning_rate(training.optimizers, changes.lr_factor))
        if own_loop and changes.precision is not None:
            stack.enter_context(_autocast_as(changes.precision))
        if own_loop and changes.max_norm is not None:
            stack.enter_context(_clip(training.optimizers, changes.max_norm))
        if changes.loss_scale is not None:
            _fix_scale(training.scaler, changes.loss_scale)
        yield


@contextmanager
def _learning_rate(optimizers: Sequence[Optimizer], factor: float) -> Iterator[None]:
    """Inside ``step`` only, so that no scheduler ever sees the changed rate."""
    saved: dict[int, list[Any]] = {}

    def before(optimizer: Optimizer, *_: Any) -> None:
        saved[id(optimizer)] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor

    def after(optimizer: Optimizer, *_: Any) -> None:
        for group, lr in zip(optimizer.param_groups, saved.pop(id(optimizer)), strict=True):
            group["lr"] = lr

    hooks = [hook for o in optimizers for hook in (o.register_step_pre_hook(before),)]
    hooks += [o.register_step_post_hook(after) for o in optimizers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _clip(optimizers: Sequence[Optimizer], max_norm: float) -> Iterator[None]:
    """Clip what each optimizer is handed; a non-finite norm is left alone."""

    def before(optimizer: Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            return
        norm = torch.nn.utils.get_total_norm(grads)
        # A fused optimizer under a scaler unscales inside its kernel.
        scale = getattr(optimizer, "grad_scale", None)
        limit = max_norm if scale is None else max_norm * scale
        if bool(norm.isfinite()):
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))

    hooks = [optimizer.register_step_pre_hook(before) for optimizer in optimizers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _autocast_as(precision: str) -> Iterator[None]:
    """Every autocast that a loop opens gets this precision; ``fp32`` and ``fp64`` switch it off."""
    dtype = AUTOCAST_DTYPE.get(precision)
    own_init = autocast.__init__

    def init(
        self: Any,
        device_type: str,
        dtype_: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
        **further: Any,
    ) -> None:
        further.pop("dtype", None)
        own_init(self, device_type, dtype, enabled and dtype is not None, cache_enabled, **further)

    autocast.__init__ = init  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        autocast.__init__ = own_init  # type: ignore[method-assign]


def _fix_scale(scaler: Any, scale: float) -> None:
    """Set the loss scale anew before every step: it may neither grow nor back off."""
    if scaler is None or not scaler.is_enabled():
        raise NotReplayableError("there is no loss scaler", where="loss scale")
    if scaler._scale is None:
        scaler._init_scale = scale
    else:
        scaler._scale.fill_(scale)
        scaler._growth_tracker.zero_()
