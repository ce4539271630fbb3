"""Learning-rate schedules, as one value a taken step; shape (rows,)."""

from __future__ import annotations

import numpy as np

from tests.corpus.noise import Floats, Rng

NAMES = ("constant", "cosine", "linear", "restarts", "step-decay", "rsqrt", "one-cycle")


def schedule(name: str, rows: int, peak: float, warmup: int = 0) -> Floats:
    """One of ``NAMES``, after a linear warm-up of so many steps."""
    at = np.arange(rows, dtype=np.float64)
    ramp = np.minimum(1.0, (at + 1) / (warmup + 1)) if warmup else np.ones(rows)
    done = np.clip((at - warmup) / max(1, rows - warmup), 0, 1)
    shapes = {
        "constant": lambda: np.ones(rows),
        "cosine": lambda: 0.1 + 0.45 * (1 + np.cos(np.pi * done)),
        "linear": lambda: 1 - done,
        "restarts": lambda: 0.05 + 0.475 * (1 + np.cos(np.pi * (4 * done % 1))),
        "step-decay": lambda: 0.1 ** np.floor(3 * done * 0.999),
        "rsqrt": lambda: 1 / np.sqrt(1 + (at - warmup).clip(0) / max(warmup, 100)),
        "one-cycle": lambda: np.where(done < 0.3, 0.04 + 3.2 * done, (1 - done) / 0.7),
    }
    return peak * ramp * shapes[name]()


def any_schedule(rng: Rng, rows: int) -> tuple[str, Floats, int]:
    """A schedule at random: its name, its rates, and its warm-up steps."""
    name = str(rng.choice(NAMES))
    warmup = int(rng.choice([0, 0.01, 0.05, 0.1]) * rows)
    return name, schedule(name, rows, float(10 ** rng.uniform(-4.5, -2)), warmup), warmup
