"""A loss scaler at work, simulated: what a healthy fp16 run logs, from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Policy:
    """Start, growth interval and hysteresis as Megatron counts it (refilled by growth only)."""

    start_log2: float = 16.0
    interval: int = 2000
    hysteresis: int = 1
    floor_log2: float = 0.0


def limits(steps: int, seed: int, noise: str = "gaussian", level: float = 12.0) -> Floats:
    """log2 of the largest scale each step survives: a level that wanders slowly, and noise.

    ``noise`` is gaussian, t3 (heavy tails) or bursty (stretches of some 30 harder steps).
    """
    rng = np.random.default_rng(seed)
    knots = max(2, steps // 500 + 2)
    wander = np.cumsum(rng.normal(0, 0.35, knots))
    wander -= 0.5 * (wander - wander[0])
    slow = np.interp(np.linspace(0, knots - 1, steps), np.arange(knots), wander)
    if noise == "gaussian":
        fast = rng.normal(0, 0.35, steps)
    elif noise == "t3":
        fast = 0.35 * rng.standard_t(3, steps)
    else:
        bursts = rng.random(steps) < 1 / 1500
        inside = np.convolve(np.append(bursts, False), np.ones(30))[:steps] > 0
        fast = rng.normal(0, 0.35, steps) - 1.5 * inside
    return level + slow + fast


def run_scaler(limit: Floats, policy: Policy) -> tuple[Floats, NDArray[np.bool_]]:
    """Scale in force at each step (before ``update()``), and which steps overflowed."""
    steps = len(limit)
    scale = np.empty(steps)
    skipped = np.zeros(steps, dtype=bool)
    log2, clean, budget, at = policy.start_log2, 0, policy.hysteresis, 0
    while at < steps:
        until = min(steps, at + policy.interval - clean)
        over = np.flatnonzero(limit[at:until] < log2)
        end = until if len(over) == 0 else at + int(over[0]) + 1
        scale[at:end] = log2
        if len(over):
            skipped[end - 1] = True
            clean, budget = 0, budget - 1
            if budget <= 0:
                log2 = max(log2 - 1, policy.floor_log2)
        else:
            clean += end - at
            if clean == policy.interval:
                log2, clean, budget = log2 + 1, 0, policy.hysteresis
        at = end
    return np.exp2(scale), skipped


def healthy_columns(
    steps: int, seed: int, noise: str = "gaussian", policy: Policy | None = None
) -> dict[str, NDArray[np.generic]]:
    """All canonical columns of a healthy fp16 run of ``steps`` steps."""
    rng = np.random.default_rng(seed + 10_000)
    scale, skipped = run_scaler(limits(steps, seed, noise), policy or Policy())
    at = np.arange(steps)
    norm = np.exp(rng.normal(0, 0.3, steps)) * (0.5 + 2 / (1 + at / 200))
    norm[skipped] = np.where(rng.random(int(skipped.sum())) < 0.5, np.inf, np.nan)
    post = np.minimum(norm, 1.0)
    return {
        "step": at,
        "lr": 1e-3 * np.minimum(1, (at + 1) / 100),
        "grad_l2_pre_clip": norm,
        "grad_l2_post_clip": np.where(skipped, np.nan, post),
        "loss": 2 + 6 * np.exp(-at / 400) + rng.normal(0, 0.05, steps),
        "skipped": skipped,
        "scaler_scale": scale,
    }
