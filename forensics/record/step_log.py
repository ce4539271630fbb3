"""What one attempted optimizer step came to: ``StepLog`` where it was taken, else ``SkipLog``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """A step that the optimizer took.

    Attributes:
        step: 0-based index of the attempted step.
        lrs: learning rate in force of every parameter group; empty where the loop has no optimizer.
        grad_l2_pre_clip: global L2 norm that the clip saw; None where it was not measured.
        grad_l2_post_clip: the same after clipping; None where nothing clips.
        loss: unscaled, mean over the micro-batches.
        scaler_scale: loss scale in force, before ``update()``; 1 without a scaler.
        norm_overflow: a norm was Inf though every element was finite.
        grads_scaled: the clip saw gradients that were still multiplied by the scale.
        loss_known: False where the loop did not tell it: then ``loss`` is NaN, its cell empty.
    """

    step: int
    lrs: tuple[float, ...]
    grad_l2_pre_clip: float | None
    grad_l2_post_clip: float | None
    loss: float
    scaler_scale: float = 1.0
    norm_overflow: bool = False
    grads_scaled: bool = False
    loss_known: bool = True
    skipped: ClassVar[bool] = False
    skip_reason: ClassVar[str] = ""

    @property
    def bad(self) -> bool:
        """Was anything non-finite applied?"""
        return _bad(self.loss if self.loss_known else 0.0, self.grad_l2_pre_clip)

    def row(self) -> dict[str, Any]:
        """The cells of ``steps.csv``; an absent one is None."""
        return _row(self)


@dataclass(frozen=True, kw_only=True)
class SkipLog:
    """A step that the optimizer did not take; attributes as in ``StepLog``.

    Attributes:
        skip_reason: ``nonfinite_loss``, ``nonfinite_grad`` or ``other``; after a ``:`` the first
            non-finite parameter or another detail.
    """

    step: int
    lrs: tuple[float, ...]
    loss: float
    skip_reason: str
    grad_l2_pre_clip: float | None = None
    scaler_scale: float = 1.0
    norm_overflow: bool = False
    grads_scaled: bool = False
    loss_known: bool = True
    grad_l2_post_clip: None = field(default=None, init=False)
    skipped: ClassVar[bool] = True

    @property
    def bad(self) -> bool:
        """A skipped step always is."""
        return True

    def row(self) -> dict[str, Any]:
        """The cells of ``steps.csv``; an absent one is None."""
        return _row(self)


def _bad(loss: float, norm: float | None) -> bool:
    return not math.isfinite(loss) or (norm is not None and not math.isfinite(norm))


def _row(log: StepLog | SkipLog) -> dict[str, Any]:
    further = {f"lr_{i}": lr for i, lr in enumerate(log.lrs) if i}
    return {
        "step": log.step,
        "lr": log.lrs[0] if log.lrs else None,
        "grad_l2_pre_clip": log.grad_l2_pre_clip,
        "grad_l2_post_clip": log.grad_l2_post_clip,
        "loss": log.loss if log.loss_known else None,
        "skipped": log.skipped,
        "skip_reason": log.skip_reason,
        "scaler_scale": log.scaler_scale,
        "norm_overflow": log.norm_overflow,
        "grads_scaled": log.grads_scaled,
        **further,
    }
