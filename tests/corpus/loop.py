"""The loop around a training: loss scaler, guards, clip and scheduler, as torch does them.

The scaler is followed from event to event (growth or overflow), so that a log of 200,000 steps is
made in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forensics.runlog.manifest import ScalerPolicy
from tests.corpus.noise import Floats
from tests.corpus.training import Bools, Training

POISON = 2.0**-128
"""At and below this scale 1/scale is Inf in fp32: GradScaler takes the step and writes NaN."""


def torch_policy(init: float = 2.0**16, interval: int = 2000, floor: float = 0.0) -> ScalerPolicy:
    """``torch.amp.GradScaler``."""
    return ScalerPolicy(enabled=True, init_scale=init, growth_interval=interval, floor=floor)


def megatron_policy(init: float = 2.0**32, interval: int = 1000, patience: int = 2) -> ScalerPolicy:
    """Megatron's and DeepSpeed's scaler: hysteresis, and a floor at 1."""
    return replace(torch_policy(init, interval, 1.0), hysteresis=patience)


@dataclass(frozen=True)
class Loop:
    """How the loop is written, faults of its own included.

    Attributes:
        precision: fp32, fp16 or bf16.
        scaler: the loss scaler, or None.
        guard: a non-finite loss is skipped before backward, a non-finite gradient before the step.
        max_norm: clip threshold, or None.
        update_on_skip: ``scaler.update()`` is called on skipped steps too.
        scaler_skips: the scaler's own skip is respected (False: ``optimizer.step()`` called past
            it).
        scheduler_skips: the scheduler stands still on skipped steps.
        unscale_first: gradients are unscaled before the clip.
        clips: the clip does what it says.
    """

    precision: str = "fp32"
    scaler: ScalerPolicy | None = None
    guard: bool = False
    max_norm: float | None = 1.0
    update_on_skip: bool = True
    scaler_skips: bool = True
    scheduler_skips: bool = True
    unscale_first: bool = True
    clips: bool = True


@dataclass
class Reaction:
    """What the loop did; arrays of shape (rows,).

    Attributes:
        scale: loss scale in force.
        skipped: the optimizer did not step.
        overflow: gradients overflowed because of the loss scale.
        poisoned_from: first step whose weights are non-finite; ``rows`` when none is.
    """

    scale: Floats
    skipped: Bools
    overflow: Bools
    poisoned_from: int


def react(training: Training, loop: Loop) -> Reaction:
    """Follow scaler and guards through the run."""
    bad = training.nan_loss | training.inf_loss | training.nan_grad | training.inf_grad
    if loop.scaler is None:
        return _without_scaler(bad, loop)
    return _Scaler(training, loop, loop.scaler, bad).run()


def _without_scaler(bad: Bools, loop: Loop) -> Reaction:
    rows = len(bad)
    first = int(np.argmax(bad)) if bad.any() else rows
    nothing = np.zeros(rows, dtype=bool)
    if loop.guard:
        return Reaction(np.ones(rows), bad.copy(), nothing, rows)
    return Reaction(np.ones(rows), nothing, nothing.copy(), min(rows, first + 1))


class _Scaler:
    """A GradScaler's state, from event to event."""

    def __init__(self, training: Training, loop: Loop, policy: ScalerPolicy, bad: Bools) -> None:
        self.loop, self.policy = loop, policy
        self.rows = training.rows
        self.bad = bad.copy()
        self.no_backward = (training.nan_loss | training.inf_loss) & loop.guard
        fine = np.flatnonzero(~bad)
        self.hopeless_from = int(fine[-1]) + 1 if len(fine) else 0
        self.limit = training.limit - np.log2(np.maximum(training.norm_factor, 1e-30))
        self.scale, self.clean, self.patience = policy.init_scale, 0, policy.hysteresis
        self.out = Reaction(np.empty(self.rows), *self._blank(), self.rows)

    def _blank(self) -> tuple[Bools, Bools]:
        return np.zeros(self.rows, dtype=bool), np.zeros(self.rows, dtype=bool)

    def run(self) -> Reaction:
        at = 0
        while at < self.rows:
            at = self._stretch(at)
        return self.out

    def _stretch(self, at: int) -> int:
        """Go on to the next overflow or growth; returns the step after it."""
        if at >= self.hopeless_from and self.loop.scaler_skips and self.scale <= self._least:
            return self._hopeless(at)
        stop = min(self.rows, at + self.policy.growth_interval - self.clean)
        if self.scale <= POISON and not self.bad[at]:
            return self._poison(at)
        log2 = np.log2(self.scale) if self.scale > 0 else -np.inf
        stops = self.bad[at:stop] | (self.limit[at:stop] < log2)
        hit = int(np.argmax(stops))
        if not stops[hit]:
            self.out.scale[at:stop] = self.scale
            self.clean += stop - at
            if self.clean >= self.policy.growth_interval:
                self._grow()
            return stop
        self.out.scale[at : at + hit + 1] = self.scale
        self._overflow(at + hit)
        return at + hit + 1

    @property
    def _least(self) -> float:
        """The scale below which no skip takes it any more."""
        return np.inf if not self.loop.update_on_skip else self.policy.floor

    def _hopeless(self, at: int) -> int:
        """Nothing but skips until the end, at a scale that does not move: written at once."""
        self.out.scale[at:] = self.scale
        self.out.skipped[at:] = True
        return self.rows

    def _grow(self) -> None:
        self.clean, self.patience = 0, self.policy.hysteresis
        self.scale *= self.policy.growth_factor

    def _overflow(self, at: int) -> None:
        self.out.overflow[at] = not self.bad[at]
        if not self.loop.scaler_skips:
            self._apply(at)
            return
        self.out.skipped[at] = True
        if not self.loop.update_on_skip:
            return
        self.clean = 0
        self.patience -= 1
        if self.patience <= 0:
            smaller = np.float32(self.scale * self.policy.backoff_factor)
            self.scale = max(float(smaller), self.policy.floor)

    def _poison(self, at: int) -> int:
        """1/scale is Inf and the scaled gradients look finite: the step is taken."""
        self.out.scale[at] = self.scale
        self._apply(at)
        return at + 1

    def _apply(self, at: int) -> None:
        """Non-finite weights from the next step on."""
        self.out.poisoned_from = min(self.out.poisoned_from, at + 1)
        self.bad[at + 1 :] = True


def columns(training: Training, loop: Loop, reaction: Reaction) -> dict[str, Floats]:
    """The canonical columns; NaN in ``absent`` cells is told by ``masks``."""
    rows = training.rows
    taken = np.cumsum(~reaction.skipped) - ~reaction.skipped
    progress = np.minimum(taken, rows - 1)
    clock = progress if loop.scheduler_skips else np.arange(rows)
    poisoned = np.arange(rows) >= reaction.poisoned_from
    with np.errstate(over="ignore", invalid="ignore"):
        loss = training.loss[progress] * np.exp(training.loss_noise) * training.loss_factor
        loss = loss + training.loss_shift
        norm = training.norm[progress] * np.exp(training.norm_noise) * training.norm_factor
    loss = np.where(training.inf_loss, np.inf, np.where(training.nan_loss, np.nan, loss))
    norm = np.where(reaction.overflow | training.inf_grad, np.inf, norm)
    bad_loss = training.nan_loss | training.inf_loss
    norm = np.where(training.nan_grad | bad_loss | poisoned, np.nan, norm)
    seen = norm if loop.unscale_first else norm * reaction.scale
    return {
        "step": np.arange(rows),
        "lr": training.lr[clock],
        "grad_l2_pre_clip": seen,
        "grad_l2_post_clip": clipped(seen, loop),
        "loss": np.where(poisoned, np.nan, loss),
        "skipped": reaction.skipped,
        "scaler_scale": reaction.scale,
    }


def clipped(norm: Floats, loop: Loop) -> Floats:
    """The norm after ``clip_grad_norm_``."""
    if loop.max_norm is None or not loop.clips:
        return norm.copy()
    with np.errstate(invalid="ignore"):
        coefficient = np.minimum(1.0, loop.max_norm / (norm + 1e-6))
        return norm * coefficient


def masks(training: Training, loop: Loop, reaction: Reaction) -> dict[str, Bools]:
    """Where a cell is written: no norm without backward, no post-clip norm on a skipped step."""
    before = (training.nan_loss | training.inf_loss) & loop.guard & reaction.skipped
    post = ~reaction.skipped if loop.max_norm is not None else np.zeros_like(before)
    return {"grad_l2_pre_clip": ~before, "grad_l2_post_clip": post}


def reasons(training: Training, loop: Loop, reaction: Reaction) -> list[str]:
    """Why each skipped step was skipped."""
    before = (training.nan_loss | training.inf_loss) & loop.guard & reaction.skipped
    texts = np.where(before, "nonfinite_loss", np.where(reaction.skipped, "nonfinite_grad", ""))
    return [str(text) for text in texts]
