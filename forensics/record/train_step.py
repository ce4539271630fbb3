"""The reference training step: mixed precision, clipping and accumulation in the right order."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from forensics.record.clipping import (
    GradNorms,
    clip_global_l2_norm,
    first_non_finite_grad,
    grad_norms,
    has_non_finite_grad,
)
from forensics.record.loss_scale import back_off, hold_floor, scale_tensor
from forensics.record.null_recorder import NullRecorder
from forensics.record.parameters import ArrivalOrder, learning_rates, tracked_parameters
from forensics.record.precision import Precision
from forensics.record.ranks.replica import Replica
from forensics.record.readback import read_scalars
from forensics.record.recipe import Batch
from forensics.record.step_log import SkipLog, StepLog
from forensics.runlog.schema import SKIP_NONFINITE_GRAD


class StepSink(Protocol):
    """Where the reference step reports: a ``Recorder`` or a ``NullRecorder``."""

    def observe(self, grads: GradNorms) -> None:
        """The unscaled gradients, before the clip."""

    def write(self, log: StepLog | SkipLog) -> None:
        """The finished step."""


class AmpTrainState:
    """A training under automatic mixed precision, and its step.

    Args:
        model: on its device already.
        optimizers: at least one, all on one device. Parameter groups are read here, once.
        loss: ``(model, micro_batch) → scalar``, the mean over the micro-batch's samples.
        precision: of the forward pass, default fp32; always on the optimizer's device.
        scaler: enabled for fp16 and only then; default a disabled one.
        schedulers: each stepped once a step that was taken.
        ema: anything with ``update(model)``; called after a step that was taken.
        max_norm: clip threshold of the global L2 norm; None clips nothing.
        scale_floor: the loss scale is never lowered below it.
        recorder: where every step is reported.
        replica: the model among those of other ranks; by default it is trained alone.
        first_step: index of the next step; above 0 when a run is resumed.
        arrival: the order in which gradients arrive, where it is known already.
        say: told in one line when the loss scale reaches its floor.

    Raises:
        UsageError: fp16 autocast without a scaler, or a scaler without fp16 autocast.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        loss: Callable[[nn.Module, Batch], Tensor],
        *,
        precision: Precision | None = None,
        scaler: GradScaler | None = None,
        schedulers: Sequence[Any] = (),
        ema: Any = None,
        max_norm: float | None = None,
        scale_floor: float = 1.0,
        recorder: StepSink | None = None,
        replica: Replica | None = None,
        first_step: int = 0,
        arrival: ArrivalOrder | None = None,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.model, self.optimizers, self.loss = model, list(optimizers), loss
        self.parameters = tracked_parameters(model, self.optimizers)
        device = self.parameters[0][1].device
        self.precision = Precision(precision.name if precision else "fp32", device.type)
        self.scaler = scaler or GradScaler(device.type, enabled=False)
        self.precision.check(self.scaler)
        self.schedulers, self.ema = list(schedulers), ema
        self.max_norm, self.scale_floor = max_norm, scale_floor
        self.recorder = recorder or NullRecorder()
        self.replica = replica or Replica(model)
        self.step_index = first_step
        self.arrival = arrival or ArrivalOrder(self.parameters)
        self._scale = scale_tensor(self.scaler, device)
        self._say = say
        self._said_floor = False

    def step(self, inputs: Any, targets: Any) -> StepLog | SkipLog:
        """The reference step on one batch; ``loss`` gets it as ``(inputs, targets)``."""
        return self.step_on([(inputs, targets)])

    def step_on(self, micro_batches: Sequence[Batch]) -> StepLog | SkipLog:
        """The reference step, top to bottom: one optimizer step over some micro-batches.

        The host waits for the device twice: for the losses before the last backward, and for the
        gradient norms (a third time where one of them is non-finite).

        Args:
            micro_batches: at least one. Each loss is divided by their number for backward, so an
                incomplete last group steps by its own size.
        """
        if not micro_batches:
            raise ValueError("a step needs at least one micro-batch")
        lrs = learning_rates(self.optimizers)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

        mean_loss, scale, skip_reason = self._accumulate(micro_batches)
        if skip_reason:
            return self._skip_before_backward(lrs, mean_loss, scale, skip_reason)
        self.arrival.settle()

        stepping = [optimizer for optimizer in self.optimizers if _has_grads(optimizer)]
        for optimizer in stepping:
            self.scaler.unscale_(optimizer)

        grads = grad_norms(self.parameters)
        self.recorder.observe(grads)
        seen: dict[str, Any] = {
            "step": self.step_index,
            "lrs": lrs,
            "loss": mean_loss,
            "scaler_scale": scale,
            "grad_l2_pre_clip": grads.total,
            "norm_overflow": grads.overflowed,
        }

        log: StepLog | SkipLog
        if has_non_finite_grad(grads):
            culprit = first_non_finite_grad(grads, self.arrival.names)
            log = SkipLog(**seen, skip_reason=f"{SKIP_NONFINITE_GRAD}:{culprit}")
        else:
            clipped = clip_global_l2_norm(grads, self.max_norm)
            for optimizer in stepping:
                self.scaler.step(optimizer)
            post = None if self.max_norm is None else clipped.post
            log = StepLog(**seen, grad_l2_post_clip=post)
        if stepping:  # without a single gradient nothing was unscaled, and update() would raise
            self.scaler.update()

        if log.skipped:
            hold_floor(self.scaler, scale, self.scale_floor)
        else:
            for scheduler in self.schedulers:
                _advance(scheduler, mean_loss)
            if self.ema is not None:
                self.ema.update(self.model)
        return self._finish(log)

    def _accumulate(self, micro_batches: Sequence[Batch]) -> tuple[float, float, str]:
        """Forward and backward of every micro-batch: the gradients add up.

        Returns:
            The mean loss, the loss scale in force, and why the step is to be skipped: then the
            last backward was not run.
        """
        losses: list[Tensor] = []
        mean_loss = scale = math.nan
        for batch in micro_batches:
            last = len(losses) + 1 == len(micro_batches)
            with self.replica.reduces(last):
                with self.precision.autocast():
                    loss = self.loss(self.replica.module, batch)
                losses.append(loss.detach())
                # One read for the whole group: the gradients of a bad one are thrown away anyway.
                if last:
                    mean_loss, scale = self._read(losses)
                    if reason := self.replica.loss_to_skip(mean_loss):
                        self.replica.give_up(loss)
                        return mean_loss, scale, reason
                self.scaler.scale(loss / len(micro_batches)).backward()
        return mean_loss, scale, ""

    def _read(self, losses: Sequence[Tensor]) -> tuple[float, float]:
        """The mean loss and the loss scale in force, in one blocking read."""
        *values, scale = read_scalars([*losses, self._scale])
        return sum(values) / len(values), scale

    def _skip_before_backward(
        self, lrs: tuple[float, ...], loss: float, scale: float, reason: str
    ) -> StepLog | SkipLog:
        """Nothing was unscaled, so ``scaler.update()`` would raise: back off without it."""
        back_off(self.scaler, scale, self.scale_floor)
        return self._finish(
            SkipLog(
                step=self.step_index,
                lrs=lrs,
                loss=loss,
                scaler_scale=scale,
                skip_reason=reason,
            )
        )

    def _finish(self, log: StepLog | SkipLog) -> StepLog | SkipLog:
        """Write the row, and speak up where a skip met the floor of the loss scale."""
        self.recorder.write(log)
        self.step_index += 1
        if log.skipped and not self._said_floor and self._at_floor(log.scaler_scale):
            self._said_floor = True
            self._say(
                f"step {log.step}: skipped with the loss scale at its floor of "
                f"{self.scale_floor:g}: a smaller scale cannot help, look at the loss and the data"
            )
        return log

    def _at_floor(self, scale: float) -> bool:
        return self.scaler.is_enabled() and scale * self.scaler.get_backoff_factor() < (
            self.scale_floor
        )


def _has_grads(optimizer: Optimizer) -> bool:
    """GradScaler refuses to step an optimizer without a single gradient."""
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _advance(scheduler: Any, loss: float) -> None:
    """``scheduler.step()``; the one that watches a metric gets the loss."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()
