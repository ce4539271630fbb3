"""A network that really trains, in numpy: what its log holds is computed, not drawn.

Two layers on a synthetic classification problem, SGD with momentum or Adam, a real clip, and in
fp16 a real GradScaler around gradients that are really cast to half precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.corpus.noise import Floats, Rng

INPUTS, HIDDEN, CLASSES, BATCH = 16, 24, 8, 32
SAMPLES = 1024


@dataclass
class Tiny:
    """A training of a tiny network.

    Attributes:
        lr: learning rate.
        adam: Adam, else SGD with momentum 0.9.
        half: cast the scaled gradients to fp16, with a GradScaler.
        squared: squared error on logits instead of cross entropy (diverges without bound).
        max_norm: clip threshold, or None.
        bad_sample: index of a sample with a NaN feature, or None.
        guard: skip non-finite steps (fp16 does so anyway).
        scale: initial loss scale.
        interval: growth interval.
        shuffle: draw each batch at random, else take them in order.
        samples: how many samples there are; with no more than a batch, each step sees all.
        climbs: minimise the negative of the loss, and log that.
    """

    rng: Rng
    lr: float = 0.05
    adam: bool = False
    half: bool = False
    squared: bool = False
    max_norm: float | None = None
    bad_sample: int | None = None
    guard: bool = False
    scale: float = 2.0**16
    interval: int = 400
    shuffle: bool = True
    samples: int = SAMPLES
    climbs: bool = False
    weights: list[Floats] = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng
        self.weights = [
            rng.standard_normal((INPUTS, HIDDEN)) / np.sqrt(INPUTS),
            np.zeros(HIDDEN),
            rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
            np.zeros(CLASSES),
        ]
        self.weights = [w.astype(np.float32) for w in self.weights]
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]
        teacher = rng.standard_normal((INPUTS, CLASSES))
        self.x = rng.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
        logits = self.x @ teacher + rng.standard_normal((SAMPLES, CLASSES))
        self.y = np.argmax(logits, axis=1)
        if self.bad_sample is not None:
            self.x[self.bad_sample, 3] = np.nan
        self.taken = self.clean = 0

    def run(self, steps: int) -> dict[str, NDArray[np.generic]]:
        """Train, and return the canonical columns (``skipped`` steps have a norm all the same)."""
        rows = [self._step(step) for step in range(steps)]
        lr, pre, post, loss, skipped, scale = (
            np.array(column) for column in zip(*rows, strict=True)
        )
        return {
            "step": np.arange(steps),
            "lr": lr,
            "grad_l2_pre_clip": pre,
            "grad_l2_post_clip": post,
            "loss": loss,
            "skipped": skipped.astype(bool),
            "skip_reason": np.where(skipped, "nonfinite_grad", ""),
            "scaler_scale": scale,
        }

    def _step(self, step: int) -> tuple[float, float, float, float, bool, float]:
        scale = self.scale if self.half else 1.0
        with np.errstate(all="ignore"):
            loss, gradients = self._backward(step)
            overflow = False
            if self.half:
                halves = [(g * np.float32(scale)).astype(np.float16) for g in gradients]
                overflow = not all(np.isfinite(half).all() for half in halves)
                # As GradScaler does it: the check comes before 1/scale, which may be Inf.
                gradients = [half * (np.float32(1) / np.float32(scale)) for half in halves]
            norm = float(np.sqrt(sum(np.float32((g * g).sum()) for g in gradients)))
            post = norm
            if self.max_norm is not None:
                factor = np.float32(min(1.0, self.max_norm / (norm + 1e-6)))
                gradients, post = [g * factor for g in gradients], norm * float(factor)
            skipped = overflow or (self.guard and not np.isfinite(norm))
            if not skipped:
                self._update(gradients)
        if self.half:
            self._rescale(skipped)
        return self.lr, norm, post, loss, skipped, scale

    def _backward(self, step: int) -> tuple[float, list[Floats]]:
        if self.shuffle:
            rows = self.rng.integers(0, self.samples, BATCH)
        else:
            rows = np.arange(step * BATCH, (step + 1) * BATCH) % self.samples
        x, y = self.x[rows], self.y[rows]
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(x @ w1 + b1, 0)
        logits = hidden @ w2 + b2
        target = np.eye(CLASSES, dtype=np.float32)[y]
        if self.squared:
            error = logits - target
            loss, delta = float((error * error).mean()), 2 * error / error.size
        else:
            logits = logits - logits.max(axis=1, keepdims=True)
            total = np.exp(logits).sum(axis=1, keepdims=True)
            share = np.exp(logits) / total
            loss = float((np.log(total[:, 0]) - logits[np.arange(BATCH), y]).mean())
            delta = (share - target) / BATCH
        if self.climbs:
            loss, delta = -loss, -delta
        back = (delta @ w2.T) * (hidden > 0)
        return loss, [x.T @ back, back.sum(0), hidden.T @ delta, delta.sum(0)]

    def _update(self, gradients: list[Floats]) -> None:
        self.taken += 1
        for i, gradient in enumerate(gradients):
            if not self.adam:
                self.first[i] = 0.9 * self.first[i] + gradient
                self.weights[i] = self.weights[i] - self.lr * self.first[i]
                continue
            self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
            self.second[i] = 0.999 * self.second[i] + 0.001 * gradient**2
            m = self.first[i] / (1 - 0.9**self.taken)
            v = self.second[i] / (1 - 0.999**self.taken)
            self.weights[i] = self.weights[i] - self.lr * m / (np.sqrt(v) + 1e-8)

    def _rescale(self, skipped: bool) -> None:
        self.clean = 0 if skipped else self.clean + 1
        if skipped:
            self.scale = float(np.float32(self.scale / 2))
        elif self.clean == self.interval:
            self.scale, self.clean = self.scale * 2, 0
