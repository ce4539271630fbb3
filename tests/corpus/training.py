"""What a training would do at every step, before the loop around it reacts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.corpus.noise import Floats, Rng, correlated, noise, student, wander
from tests.corpus.schedules import any_schedule, schedule

Bools = NDArray[np.bool_]


@dataclass
class Training:
    """A training as arrays of shape (rows,); faults are planted by changing them.

    What is learned goes by the number of taken steps (``loss``, ``norm``, ``lr``); what a batch
    does goes by the attempted step (the rest).

    Attributes:
        loss: the course of the loss without noise.
        norm: the course of the gradient norm without noise.
        lr: the learning-rate schedule.
        loss_noise: added to the log of the loss.
        loss_shift: added to the loss itself (for losses that pass through 0).
        norm_noise: added to the log of the norm.
        limit: log2 of the largest loss scale that backward survives in fp16.
        loss_factor: multiplies the loss; 1 without a fault.
        norm_factor: multiplies the norm, and lowers the limit accordingly.
        nan_loss: forward gives NaN at this step.
        inf_loss: forward gives Inf at this step.
        nan_grad: backward gives NaN at this step, whatever the loss scale.
        inf_grad: backward gives Inf at this step, whatever the loss scale.
        warmup: steps of warm-up in ``lr``.
        schedule: its name.
    """

    rng: Rng
    rows: int
    loss: Floats
    norm: Floats
    lr: Floats
    loss_noise: Floats
    norm_noise: Floats
    limit: Floats
    warmup: int = 0
    schedule: str = ""
    loss_shift: Floats = field(init=False)
    loss_factor: Floats = field(init=False)
    norm_factor: Floats = field(init=False)
    nan_loss: Bools = field(init=False)
    inf_loss: Bools = field(init=False)
    nan_grad: Bools = field(init=False)
    inf_grad: Bools = field(init=False)

    def __post_init__(self) -> None:
        self.loss_shift = np.zeros(self.rows)
        self.loss_factor, self.norm_factor = np.ones(self.rows), np.ones(self.rows)
        self.nan_loss, self.inf_loss, self.nan_grad, self.inf_grad = (
            np.zeros(self.rows, dtype=bool) for _ in range(4)
        )

    def at(self, low: float, high: float) -> int:
        """A step at random between two shares of the run."""
        return int(self.rng.uniform(low, high) * self.rows)

    def rate(self, name: str, peak: float, warmup: int = 0) -> None:
        """Set the learning-rate schedule."""
        self.lr = schedule(name, self.rows, peak, warmup)
        self.schedule, self.warmup = name, warmup

    def clean_noise(self, loss: float = 0.01, norm: float = 0.1) -> Training:
        """Set the noise to Gaussian with these deviations in log space."""
        self.loss_noise = loss * self.rng.standard_normal(self.rows)
        self.norm_noise = norm * self.rng.standard_normal(self.rows)
        return self


def power_law(rows: int, start: float, floor: float, steps: float, exponent: float) -> Floats:
    """A loss that falls from ``start`` towards ``floor`` as a power of the step."""
    return floor + (start - floor) * (1 + np.arange(rows) / steps) ** -exponent


def headroom(rng: Rng, rows: int, kind: str = "gaussian", level: float | None = None) -> Floats:
    """Where fp16 backward overflows: log2 of the largest loss scale that it survives.

    The level wanders slowly, and every batch adds noise of one of ``noise.KINDS``. Heavy tails
    are those of the largest gradient element itself, so exponential in its logarithm.
    """
    middle = rng.uniform(12, 19) if level is None else level
    slow = rng.uniform(0.1, 0.6) * wander(rng, rows, 20_000)
    if kind in ("t2", "t3"):
        return middle + slow - np.log2(1 + np.abs(noise(rng, rows, kind)))
    return middle + slow + rng.uniform(0.2, 0.45) * noise(rng, rows, kind)


def _norms(rng: Rng, rows: int, start: float, level: float) -> Floats:
    """A norm that is high at the start and settles at a level, drifting a little."""
    settle = max(5.0, rng.uniform(0.005, 0.03) * rows)
    drift = rng.uniform(-0.3, 0.5) * np.linspace(0, 1, rows)
    return level * (1 + (start - 1) * np.exp(-np.arange(rows) / settle)) * np.exp(drift)


def _assemble(rng: Rng, loss: Floats, norm: Floats, sigmas: tuple[float, float]) -> Training:
    rows = len(loss)
    name, lr, warmup = any_schedule(rng, rows)
    return Training(
        rng=rng,
        rows=rows,
        loss=loss,
        norm=norm,
        lr=lr,
        loss_noise=sigmas[0] * rng.standard_normal(rows),
        norm_noise=sigmas[1] * student(rng, rows, 6),
        limit=headroom(rng, rows),
        warmup=warmup,
        schedule=name,
    )


def pretraining(rng: Rng, rows: int) -> Training:
    """A language model from scratch: 10.8 falling to about 3, little noise."""
    loss = power_law(rows, 10.8, rng.uniform(1.8, 2.6), 0.01 * rows + 20, rng.uniform(0.35, 0.6))
    norm = _norms(rng, rows, rng.uniform(2, 8), rng.uniform(0.2, 0.7))
    return _assemble(rng, loss, norm, (rng.uniform(0.005, 0.02), rng.uniform(0.08, 0.2)))


def small_batch(rng: Rng, rows: int) -> Training:
    """A small batch: the loss is mostly noise."""
    loss = power_law(rows, 4.0, 1.0, 0.05 * rows + 10, 0.7)
    norm = _norms(rng, rows, 2.0, rng.uniform(1, 5))
    return _assemble(rng, loss, norm, (rng.uniform(0.1, 0.25), rng.uniform(0.3, 0.45)))


def fine_tuning(rng: Rng, rows: int) -> Training:
    """Fine-tuning: the loss falls by a few per cent, norms above any usual threshold."""
    loss = power_law(rows, 1.45, rng.uniform(1.25, 1.38), 0.1 * rows + 5, 1.0)
    norm = _norms(rng, rows, 1.5, rng.uniform(1.2, 4))
    return _assemble(rng, loss, norm, (rng.uniform(0.05, 0.12), rng.uniform(0.15, 0.3)))


def vision(rng: Rng, rows: int) -> Training:
    """Image classification: 6.9 falling to 1.5, a small step at every epoch."""
    epochs = int(rng.integers(5, 30))
    steps = np.floor(np.linspace(0, epochs * 0.999, rows)) / epochs
    loss = 6.9 * np.exp(-1.4 * steps - 0.2 * np.linspace(0, 1, rows))
    norm = _norms(rng, rows, 1.5, rng.uniform(0.5, 3))
    return _assemble(rng, loss, norm, (rng.uniform(0.03, 0.08), rng.uniform(0.1, 0.25)))


def regression(rng: Rng, rows: int) -> Training:
    """Regression towards zero: the loss falls by three to five decades, the norm with its root."""
    loss = power_law(rows, 1.0, 0.0, 0.01 * rows + 5, rng.uniform(1.0, 1.8))
    norm = rng.uniform(0.5, 2) * np.sqrt(loss)
    return _assemble(rng, loss, norm, (rng.uniform(0.1, 0.2), rng.uniform(0.1, 0.3)))


def reinforcement(rng: Rng, rows: int) -> Training:
    """A policy loss around zero, of both signs, with heavy tails; clipped often."""
    made = _assemble(rng, np.zeros(rows), _norms(rng, rows, 1.0, 0.6), (0.0, 0.5))
    made.loss_shift = rng.uniform(0.02, 0.2) * (
        student(rng, rows, 3) + 0.5 * correlated(rng, rows, 50)
    )
    return made


KINDS = {
    "pretraining": pretraining,
    "small-batch": small_batch,
    "fine-tuning": fine_tuning,
    "vision": vision,
    "regression": regression,
    "reinforcement": reinforcement,
}


def training(rng: Rng, rows: int, kind: str = "pretraining") -> Training:
    """A healthy training of one of ``KINDS``."""
    return KINDS[kind](rng, rows)
