"""Recording a loop that runs under Hugging Face Accelerate.

    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with AcceleratedRecorder("runs/x", accelerator, model, optimizer, max_norm=1.0) as recorder:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss(model, batch))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            recorder.end_step()

What lies between unscale and clip cannot be reached from outside, for the accelerator does both in
one call. So its ``unscale_gradients`` is followed by the measuring, on this one accelerator and for
as long as the recorder is open; ``backward`` tells the losses, and where there are several
optimizers ``clip_grad_norm_`` tells whose turn it is. None of them computes anything else.

Of several processes each makes one: rank 0 writes the run, all write a log of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from forensics.record.precision import Precision
from forensics.record.provenance import describe_run, package_version
from forensics.record.ranks.world import unwrapped
from forensics.record.recorder import Recorder
from forensics.record.trainers.collectives import mark_waits

if TYPE_CHECKING:
    from accelerate import Accelerator

_PRECISION = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}
_ENGINES = ("DEEPSPEED", "MEGATRON_LM")
_COLLECTIVES = ("gather", "reduce", "wait_for_everyone")


class AcceleratedRecorder:
    """Records what a prepared model and its optimizers do under one accelerator.

    Args:
        run_dir: the run directory.
        accelerator: that prepared them.
        model: as prepared; recorded under its plain names.
        optimizers: as prepared, one or several.
        max_norm: the threshold that the loop clips at; None where it does not.
        first_step: above 0 a run in the directory is continued.
        options: further arguments of ``Recorder``.

    Attributes:
        recorder: the ``Recorder`` behind it, for ``note`` and ``saved``.

    Raises:
        UsageError: as ``Recorder``.
    """

    def __init__(
        self,
        run_dir: str | Path,
        accelerator: Accelerator,
        model: nn.Module,
        optimizers: Any,
        *,
        max_norm: float | None = None,
        first_step: int = 0,
        **options: Any,
    ) -> None:
        plain = unwrapped(model)
        prepared = optimizers if isinstance(optimizers, Sequence) else [optimizers]
        inner: list[Any] = [getattr(optimizer, "optimizer", optimizer) for optimizer in prepared]
        scaler = accelerator.scaler
        if "manifest" not in options:
            known = describe_run(
                plain, inner, scaler=scaler, precision=precision_of(accelerator), max_norm=max_norm
            )
            options["manifest"] = replace(
                known,
                accumulation=accelerator.gradient_accumulation_steps,
                versions={**known.versions, "accelerate": package_version("accelerate")},
            )
        self.recorder = Recorder(
            run_dir,
            model,
            inner,
            scaler=scaler,
            max_norm=max_norm,
            first_step=first_step,
            **options,
        )
        self._accelerator = accelerator
        self._losses: list[Tensor] = []
        self._measured = self._stepped = self._due = False
        self._optimizers = inner
        self._clipped: set[int] = set()
        self._turn: list[Any] = []
        self._measured_at = 0
        self._hooks = [o.register_step_post_hook(self._has_stepped) for o in inner[1:] and inner]
        self._undo = [self._follow_step(optimizer) for optimizer in prepared]
        self._follow(accelerator)
        self._leave = mark_waits(accelerator, _COLLECTIVES, self.recorder)

    def end_step(self, loss: Tensor | float | None = None) -> None:
        """Call at the end of every iteration: where the optimizer's turn came, writes its row.

        Args:
            loss: the mean over all micro-batches, where ``backward`` was not called through the
                accelerator.
        """
        if not (self._due and self._accelerator.sync_gradients):
            return
        if loss is None and (not self._measured or len(self._optimizers) > 1):
            loss = self._mean_loss()
        self._losses, self._measured, self._stepped, self._due = [], False, False, False
        self._clipped.clear()
        self.recorder.end_step(loss)  # without one: it was read with the gradients

    def close(self) -> None:
        """Leave the accelerator as it was, and close the run."""
        for name in ("backward", "unscale_gradients", "clip_grad_norm_", "save_state"):
            vars(self._accelerator).pop(name, None)
        self._leave()
        for hook in self._hooks:
            hook.remove()
        for undo in self._undo:
            undo()
        self.recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.recorder.__exit__(kind, error, trace)
        self.close()

    def _follow(self, accelerator: Any) -> None:
        backward, unscale = accelerator.backward, accelerator.unscale_gradients
        save = accelerator.save_state

        def heard(loss: Tensor, **arguments: Any) -> Any:
            self._losses.append(loss.detach())
            return backward(loss, **arguments)

        def measured(optimizer: Any = None) -> None:
            unscale(optimizer)
            self._measure()

        def saved(*args: Any, **arguments: Any) -> Any:
            folder = save(*args, **arguments)
            self.recorder.saved(folder, self.recorder.next_step + self._due)
            return folder

        accelerator.backward, accelerator.unscale_gradients = heard, measured
        accelerator.save_state = saved
        if len(self._optimizers) > 1:
            self._follow_clips(accelerator)

    def _follow_step(self, optimizer: Any) -> Callable[[], None]:
        """A step is due where the loop calls ``step``: it may count its micro-batches itself.

        Of a prepared one: where its scaler holds it back, the inner one's is never called.

        Returns:
            What leaves the optimizer as it was.
        """
        step = optimizer.step

        def called(_: Any, *args: Any, **kwargs: Any) -> Any:
            self._due = self._due or bool(self._accelerator.sync_gradients)
            return step(*args, **kwargs)

        mine = MethodType(called, optimizer)  # a scheduler made later wraps nothing but a method
        optimizer.step = mine

        def undo() -> None:
            if optimizer.step is mine:
                optimizer.step = step

        return undo

    def _follow_clips(self, accelerator: Any) -> None:
        """Of several optimizers, each may have a backward and a clip of its own before all step."""
        clip = accelerator.clip_grad_norm_

        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            held = {id(parameter) for parameter in parameters}
            self._turn = [o for o in self._optimizers if not held.isdisjoint(_ids(o))]
            try:
                return clip(parameters, *args, **kwargs)
            finally:
                self._clipped |= set(map(id, self._turn))
                self._turn = []

        accelerator.clip_grad_norm_ = clipped

    def _measure(self) -> None:
        """Once a step; again where an optimizer has stepped, or backward ran, since then."""
        if not self._measured or self._stepped:
            self._measured, self._stepped = True, False
            self.recorder.gradients(self._mean_loss())
        elif self._turn and len(self._losses) > self._measured_at:
            fresh = [o for o in self._turn if id(o) not in self._clipped]
            if not fresh:
                return
            self.recorder.gradients(self._mean_loss(), optimizers=fresh)
        self._measured_at = len(self._losses)

    def _has_stepped(self, optimizer: Any, *_: Any) -> None:
        """One of several optimizers has: what the others hold by then is measured anew."""
        self._stepped = True
        self._clipped.discard(id(optimizer))

    def _mean_loss(self) -> Tensor | float:
        return mean_loss(self._losses, self._accelerator)


def _ids(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def mean_loss(losses: Sequence[Tensor], accelerator: Any) -> Tensor | float:
    """Over a step's micro-batches, each of which ``backward`` weighs alike; NaN without any."""
    if not losses:
        return float("nan")
    total = torch.stack([loss.float().mean() for loss in losses]).sum()
    return total / int(accelerator.gradient_accumulation_steps)


def precision_of(accelerator: Any) -> Precision | None:
    """What the forward pass runs in; None where an engine of its own decides (DeepSpeed, fp8)."""
    name = _PRECISION.get(str(accelerator.mixed_precision))
    if name is None or accelerator.distributed_type.value in _ENGINES:
        return None
    # Asked for fp16 on a CPU the accelerator warns, and uses neither autocast nor a scaler.
    return Precision(name if accelerator.native_amp else "fp32", accelerator.device.type)
