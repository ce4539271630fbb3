"""What a training loop of somebody else's did in one step, found out from outside."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from forensics.record.clipping import GradNorms, first_non_finite_grad, grad_norms
from forensics.record.loss_scale import found_infs, grads_are_scaled, scale_tensor
from forensics.record.parameters import ArrivalOrder, learning_rates
from forensics.record.readback import read_scalars
from forensics.record.step_log import SkipLog, StepLog
from forensics.record.tensor_norms import combine, l2_norms
from forensics.runlog.schema import SKIP_NONFINITE_GRAD, SKIP_NONFINITE_LOSS, SKIP_OTHER

_Stamps = list[tuple[weakref.ref[Tensor], int]]
"""Of each gradient the tensor itself and how often it has been written: nothing is read."""


@dataclass
class _Entry:
    """One call of an optimizer's ``step``: what it was handed, still on the device."""

    optimizer: Optimizer
    gradients: _Stamps
    grad_l2: list[Tensor]
    found_inf: Tensor | None
    grad_scale: Tensor | None
    overflowed: bool = False
    post: float = 0.0


@dataclass
class _Seen:
    """What has been seen of the step so far."""

    lrs: tuple[float, ...]
    scale: float
    norms: GradNorms | None = None
    overflowed: set[int] = field(default_factory=set)
    grads_scaled: bool = False
    entries: list[_Entry] = field(default_factory=list)


class LoopWatch:
    """Tells, from hooks and from the scaler, whether and how a foreign loop stepped.

    An optimizer stepped when its ``step`` was entered and, for a fused one under a GradScaler,
    the ``found_inf`` that it was handed is 0: fused optimizers are always called and skip inside
    their kernel. The step counts as skipped when none stepped, or when one stayed behind because
    of non-finite gradients (its found_inf was seen, or the loss scale fell).

    Args:
        named_parameters: what the gradients are taken of.
        optimizers: those whose steps count.
        scaler: the loop's GradScaler, if it has one.
        measure_post_clip: take the norm again at optimizer entry, after the loop's own clip.
        first_step: index of the next step.
        arrival: in which order gradients arrive.

    Attributes:
        repeated: steps so far in which one optimizer's ``step`` was called more than once.
        reapplied: those of them in which it was handed the very same gradients again.
        first_reapplied: the first such step, or None.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, Tensor]],
        optimizers: Sequence[Optimizer],
        scaler: GradScaler | None = None,
        *,
        measure_post_clip: bool = True,
        first_step: int = 0,
        arrival: ArrivalOrder | None = None,
    ) -> None:
        self.parameters, self.optimizers = list(named_parameters), list(optimizers)
        self.arrival = arrival or ArrivalOrder(self.parameters)
        self.step_index = first_step
        self.repeated = self.reapplied = 0
        self.first_reapplied: int | None = None
        self._measure = measure_post_clip
        device = self.parameters[0][1].device
        self._scaler = scaler or GradScaler(device.type, enabled=False)
        self._scale = scale_tensor(self._scaler, device)
        self._hooks: list[RemovableHandle] = []
        for optimizer in self.optimizers:
            self._hooks += [
                optimizer.register_step_pre_hook(self._entered),
                optimizer.register_step_post_hook(self._left),
            ]
        self._seen = _Seen(learning_rates(self.optimizers), read_scalars([self._scale])[0])

    def gradients(self) -> GradNorms:
        """Measure the gradients where the loop is about to clip them; one blocking read."""
        self.arrival.settle()
        seen = self._seen
        owners, found = self._found_infs()
        seen.norms = grad_norms(self.parameters, [self._scale, *found])
        seen.scale, *flags = seen.norms.alongside
        seen.overflowed = {owner for owner, flag in zip(owners, flags, strict=True) if flag > 0}
        seen.lrs = learning_rates(self.optimizers)
        seen.grads_scaled = grads_are_scaled(self._scaler, self._active())
        return seen.norms

    @property
    def grads_scaled(self) -> bool:
        """Were the gradients just measured still multiplied by the loss scale?"""
        return self._seen.grads_scaled

    def end_step(self, loss: Tensor | float) -> StepLog | SkipLog:
        """What the step came to; one blocking read."""
        self.arrival.settle()
        seen = self._seen
        mean_loss, scale = self._read(loss)
        fell = scale < seen.scale
        calls = [id(entry.optimizer) for entry in seen.entries]
        self.repeated += len(calls) > len(set(calls))
        if _applied_again(seen.entries):
            self.reapplied += 1
            self.first_reapplied = (
                self.step_index if self.first_reapplied is None else self.first_reapplied
            )
        stepped = {id(entry.optimizer) for entry in seen.entries if not entry.overflowed}
        behind = {id(optimizer) for optimizer in self.optimizers} - stepped
        overflowed = seen.overflowed | {id(e.optimizer) for e in seen.entries if e.overflowed}
        skipped = not stepped or bool(behind and (overflowed & behind or fell))
        common: dict[str, Any] = {
            "step": self.step_index,
            "lrs": seen.lrs,
            "loss": mean_loss,
            "scaler_scale": seen.scale,
            "grad_l2_pre_clip": None if seen.norms is None else seen.norms.total,
            "norm_overflow": seen.norms is not None and seen.norms.overflowed,
            "grads_scaled": seen.grads_scaled,
        }
        log: StepLog | SkipLog
        if skipped:
            reason = self._reason(mean_loss, bool(overflowed) or fell)
            log = SkipLog(**common, skip_reason=reason)
        else:
            log = StepLog(**common, grad_l2_post_clip=self._post_clip())
        self.step_index += 1
        self._seen = _Seen(learning_rates(self.optimizers), scale)
        return log

    def close(self) -> None:
        """Take all hooks away."""
        for hook in self._hooks:
            hook.remove()
        self.arrival.close()

    def _entered(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Pre-hook of every optimizer: nothing is read here, so nothing waits."""
        if not _has_closure(args, kwargs):
            self._note_entry(optimizer)

    def _left(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Post-hook: what a closure computed and clipped within ``step`` is there only now."""
        if _has_closure(args, kwargs):
            self._note_entry(optimizer)

    def _note_entry(self, optimizer: Optimizer) -> None:
        seen = self._seen
        seen.lrs = learning_rates(self.optimizers)
        grads = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        # Under a fused optimizer the scaler leaves the unscaling and the skip to the kernel.
        seen.entries.append(
            _Entry(
                optimizer,
                [(weakref.ref(grad), grad._version) for grad in grads],
                l2_norms([_values(g) for g in grads]) if self._measure else [],
                getattr(optimizer, "found_inf", None),
                getattr(optimizer, "grad_scale", None),
            )
        )

    def _read(self, loss: Tensor | float) -> tuple[float, float]:
        """Loss and scale, and what the entries still hold on the device."""
        entries = self._seen.entries
        scalars = [loss] if isinstance(loss, Tensor) else []
        scalars.append(self._scale)
        for entry in entries:
            scalars += [t for t in (entry.found_inf, entry.grad_scale) if t is not None]
            scalars += entry.grad_l2
        values = iter(read_scalars(scalars))
        mean_loss = next(values) if isinstance(loss, Tensor) else float(loss)
        scale = next(values)
        for entry in entries:
            entry.overflowed = entry.found_inf is not None and next(values) > 0
            unscale = 1.0 if entry.grad_scale is None else next(values)
            entry.post = combine([next(values) for _ in entry.grad_l2]) / unscale
        return mean_loss, scale

    def _post_clip(self) -> float | None:
        """Over all optimizers, of each its last call: two calls are no larger gradient."""
        last = {id(entry.optimizer): entry.post for entry in self._seen.entries}
        return combine(list(last.values())) if self._measure else None

    def _reason(self, loss: float, overflowed: bool) -> str:
        """Why a step was skipped, as far as it can be seen."""
        norms = self._seen.norms
        if norms is not None and norms.nonfinite:
            return f"{SKIP_NONFINITE_GRAD}:{first_non_finite_grad(norms, self.arrival.names)}"
        if norms is None and not math.isfinite(loss):
            return SKIP_NONFINITE_LOSS
        return SKIP_NONFINITE_GRAD if overflowed else SKIP_OTHER

    def _found_infs(self) -> tuple[list[int], list[Tensor]]:
        """The found_inf tensors of the optimizers that were unscaled, and whose each is."""
        pairs = [(id(o), t) for o in self.optimizers for t in found_infs(self._scaler, [o])]
        return [owner for owner, _ in pairs], [tensor for _, tensor in pairs]

    def _active(self) -> list[Optimizer]:
        """The optimizers with a gradient: one that rests this step was not unscaled either."""
        return [
            o
            for o in self.optimizers
            if any(p.grad is not None for group in o.param_groups for p in group["params"])
        ]


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Was ``step`` handed a closure, that is, are the gradients computed within it?

    Args:
        args: of the call, the optimizer itself first.
        kwargs: of the call.
    """
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce()._values() if grad.is_sparse else grad


def _applied_again(entries: Sequence[_Entry]) -> bool:
    """Did an optimizer that stepped enter again with the same gradients, unwritten in between?"""
    earlier: dict[int, _Stamps] = {}
    for entry in entries:
        if entry.overflowed or not entry.gradients:
            continue
        before = earlier.get(id(entry.optimizer))
        if before is not None and _same(before, entry.gradients):
            return True
        earlier[id(entry.optimizer)] = entry.gradients
    return False


def _same(before: _Stamps, after: _Stamps) -> bool:
    if len(before) != len(after):
        return False
    return all(
        old_version == version and (grad := new()) is not None and old() is grad
        for (old, old_version), (new, version) in zip(before, after, strict=True)
    )
