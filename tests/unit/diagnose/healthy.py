"""Healthy training, simulated: what every rule must stay silent about (info is allowed).

Each kind is a function ``(rng, rows) → columns``; ``healthy_run(kind, seed, rows)`` makes a run of
it. Losses and norms have the shapes and the noise that sound runs of that kind have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import Rule
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.grad_scaler import Policy, limits, run_scaler

Columns = dict[str, np.ndarray]
Generator = np.random.Generator


def signals_of(columns: Columns, manifest: Manifest | None = None) -> Signals:
    """The signals of a run made of these columns; no norm is written after the clip on a skip."""
    masks = {}
    if {"skipped", "grad_l2_post_clip"} <= columns.keys():
        masks["grad_l2_post_clip"] = ~np.asarray(columns["skipped"], dtype=bool)
    steps = StepTable.from_arrays(columns, masks)
    return Signals(Run(path=Path("run"), steps=steps, manifest=manifest))


def correlated(rng: Generator, rows: int, rho: float) -> np.ndarray:
    """Noise of unit variance in which neighbours resemble each other (AR 1)."""
    noise = rng.normal(size=rows)
    out = np.empty(rows)
    state = rng.normal()
    for i, shock in enumerate(noise * np.sqrt(1 - rho * rho)):
        state = rho * state + shock
        out[i] = state
    return out


def decay(rows: int, start: float, end: float, power: float = 0.5, scale: float = 30) -> np.ndarray:
    """A loss that falls from start towards end as a power of the step."""
    return end + (start - end) * (1 + np.arange(rows) / scale) ** -power


def warmup_cosine(rows: int, peak: float = 3e-4, floor: float = 0.1) -> np.ndarray:
    """Linear warm-up over the first twentieth, cosine to a tenth of the peak."""
    warm = max(1, rows // 20)
    step = np.arange(rows)
    cosine = floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * (step - warm) / max(1, rows - warm)))
    return peak * np.where(step < warm, (step + 1) / warm, cosine)


def norms(rng: Generator, rows: int, level: float = 0.5, noise: float = 0.2) -> np.ndarray:
    """Gradient norms: high at the start, then level with lognormal noise."""
    start = 1 + 8 * np.exp(-np.arange(rows) / 40)
    return level * start * np.exp(noise * rng.normal(size=rows))


def pretraining(rng: Generator, rows: int) -> Columns:
    loss = decay(rows, 10.8, 2.4) * np.exp(0.015 * correlated(rng, rows, 0.3))
    growth = 1 + 0.5 * np.arange(rows) / rows
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 0.3) * growth}


def small_batch(rng: Generator, rows: int) -> Columns:
    loss = decay(rows, 6.0, 1.8) * np.exp(0.3 * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 2.0, 0.5)}


def fine_tuning(rng: Generator, rows: int) -> Columns:
    falls = np.exp(-np.arange(rows) / max(20, rows / 15))
    loss = (1.25 + 0.35 * falls) * np.exp(0.12 * rng.normal(size=rows))
    return {
        "loss": loss,
        "grad_l2_pre_clip": norms(rng, rows, 2.5, 0.35),
        "lr": 2e-5 * np.linspace(1, 0, rows),
    }


def flat_fine_tuning(rng: Generator, rows: int) -> Columns:
    """It was good before: 2 % is all it gains."""
    loss = (1.0 - 0.02 * np.arange(rows) / rows) * np.exp(0.1 * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": 1.2 * np.exp(0.3 * rng.normal(size=rows))}


def memorising(rng: Generator, rows: int) -> Columns:
    """Three epochs of fine-tuning: the loss drops at each, noise grows as it nears zero."""
    epoch = np.minimum(2, 3 * np.arange(rows) // rows)
    level = np.array([1.4, 0.7, 0.15])[epoch]
    loss = level * np.exp(np.array([0.2, 0.4, 0.7])[epoch] * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 1.5, 0.4)}


def learned_but_for_a_few(rng: Generator, rows: int) -> Columns:
    """Nearly all samples are known by heart, one in a hundred is not."""
    loss = decay(rows, 2.0, 0.004, 1.5) * np.exp(0.6 * rng.normal(size=rows))
    hard = rng.random(rows) < 0.01
    loss = np.where(hard, rng.uniform(0.5, 2.0, rows), loss)
    norm = norms(rng, rows, 0.2, 0.6) * np.where(hard, 4.0, 1.0)
    return {"loss": loss, "grad_l2_pre_clip": norm}


def vision(rng: Generator, rows: int) -> Columns:
    step = np.arange(rows)
    phase = (step >= rows // 2).astype(int) + (step >= 3 * rows // 4)
    level = np.array([1.0, 0.55, 0.45])[phase] * (0.6 + 1.7 * np.exp(-step / (rows / 20 + 1)))
    return {
        "loss": level * np.exp(0.08 * rng.normal(size=rows)),
        "grad_l2_pre_clip": norms(rng, rows, 1.0, 0.25) * np.array([1.0, 1.6, 1.9])[phase],
        "lr": 0.1 * 0.1 ** phase.astype(float),
    }


def reinforcement(rng: Generator, rows: int) -> Columns:
    """Policy gradients: a loss about zero that wanders and has heavy tails."""
    wander = np.cumsum(rng.normal(size=rows)) * 0.05 / np.sqrt(rows)
    loss = wander + 0.03 * rng.standard_t(3, size=rows)
    return {"loss": loss, "grad_l2_pre_clip": 0.8 * np.exp(0.6 * correlated(rng, rows, 0.5))}


def value_learning(rng: Generator, rows: int) -> Columns:
    """A critic's loss: positive, noisy, it grows as returns grow and falls again."""
    step = np.linspace(0, 1, rows)
    level = 0.4 + 0.3 * np.sin(5 * step) + 0.2 * step
    return {
        "loss": level * np.exp(0.5 * correlated(rng, rows, 0.6)),
        "grad_l2_pre_clip": 1.5 * np.exp(0.7 * correlated(rng, rows, 0.6)),
    }


def restarts(rng: Generator, rows: int) -> Columns:
    period = max(20, rows // 8)
    place = (np.arange(rows) % period) / period
    loss = decay(rows, 5.0, 1.2) * (1 + 0.12 * np.exp(-8 * place) * (np.arange(rows) >= period))
    return {
        "loss": loss * np.exp(0.04 * rng.normal(size=rows)),
        "grad_l2_pre_clip": norms(rng, rows, 0.8, 0.3) * (1 + 0.5 * np.exp(-6 * place)),
        "lr": 1e-5 + 1e-2 * 0.5 * (1 + np.cos(np.pi * place)),
    }


def _tailed(freedom: float, width: float) -> Callable[[Generator, int], Columns]:
    def kind(rng: Generator, rows: int) -> Columns:
        tails = np.exp(width * np.clip(rng.standard_t(freedom, size=rows), -200, 200))
        loss = decay(rows, 9.0, 2.6) * np.exp(0.02 * rng.normal(size=rows))
        return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 0.4, 0.05) * tails}

    return kind


def bursty(rng: Generator, rows: int) -> Columns:
    width = np.exp(0.7 * correlated(rng, rows, 0.97))
    loss = decay(rows, 9.0, 2.6) * np.exp(0.02 * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": 0.5 * np.exp(0.2 * width * rng.normal(size=rows))}


def sticky(rng: Generator, rows: int) -> Columns:
    loss = decay(rows, 9.0, 2.6) * np.exp(0.03 * correlated(rng, rows, 0.99))
    return {"loss": loss, "grad_l2_pre_clip": 0.5 * np.exp(0.4 * correlated(rng, rows, 0.995))}


def drifting(rng: Generator, rows: int) -> Columns:
    drift = np.cumsum(rng.normal(size=rows)) / np.sqrt(rows)
    loss = decay(rows, 9.0, 2.6) * np.exp(0.02 * rng.normal(size=rows))
    return {
        "loss": loss,
        "grad_l2_pre_clip": 0.5 * np.exp(0.6 * drift + 0.2 * rng.normal(size=rows)),
    }


def curriculum(rng: Generator, rows: int) -> Columns:
    """The data get harder twice: the loss steps up by 0.3 and 0.5 and goes on falling."""
    step = np.arange(rows)
    level = decay(rows, 8.0, 2.2)
    level = level + 0.3 * (step >= rows // 3) * np.exp(-(step - rows // 3) / rows)
    level = level + 0.5 * (step >= 2 * rows // 3) * np.exp(-(step - 2 * rows // 3) / rows)
    norm = norms(rng, rows, 0.5) * np.where(step >= rows // 3, 1.5, 1.0)
    return {"loss": level * np.exp(0.02 * rng.normal(size=rows)), "grad_l2_pre_clip": norm}


def floor(rng: Generator, rows: int) -> Columns:
    loss = 0.35 + 2 * np.exp(-np.arange(rows) / 60) + 0.01 * rng.normal(size=rows)
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 0.2, 0.3)}


def near_zero(rng: Generator, rows: int) -> Columns:
    level = np.maximum(3e-4, 2.3 * np.exp(-np.arange(rows) / 80))
    norm = np.maximum(0.02, 3 * np.exp(-np.arange(rows) / 120))
    return {
        "loss": level * np.exp(0.8 * rng.normal(size=rows)),
        "grad_l2_pre_clip": norm * np.exp(0.6 * rng.normal(size=rows)),
    }


def negative(rng: Generator, rows: int) -> Columns:
    """A log-likelihood: from 5 down to -100."""
    loss = 5 - 105 * (1 - np.exp(-np.arange(rows) / (rows / 6))) + rng.normal(size=rows)
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 20.0, 0.3)}


def diffusion(rng: Generator, rows: int) -> Columns:
    """The loss depends on the noise level that was drawn far more than on the model."""
    loss = (0.05 + 0.95 * np.exp(-np.arange(rows) / 50)) * np.exp(0.5 * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": norms(rng, rows, 0.1, 0.5)}


def full_batch(rng: Generator, rows: int) -> Columns:
    """No noise at all: it converges to the last bit, the norm to nothing."""
    del rng
    step = np.arange(rows)
    loss = np.float32(0.125 + 2.0 * np.exp(-step / 25.0)).astype(float)
    return {"loss": loss, "grad_l2_pre_clip": 3.0 * np.exp(-step / 50.0) + 1e-12}


def unshuffled(rng: Generator, rows: int) -> Columns:
    """Ten batches, always in the same order."""
    batch = 0.15 * rng.normal(size=10)[np.arange(rows) % 10]
    loss = decay(rows, 3.0, 0.8) * np.exp(batch + 0.01 * rng.normal(size=rows))
    norm = norms(rng, rows, 1.0, 0.05) * np.exp(2 * batch)
    return {"loss": loss, "grad_l2_pre_clip": norm}


def low_rank(rng: Generator, rows: int) -> Columns:
    """Adapters that start at zero: the norm grows tenfold in the warm-up."""
    grows = 1 - 0.93 * np.exp(-np.arange(rows) / 60)
    loss = (1.1 + 0.5 * np.exp(-np.arange(rows) / 100)) * np.exp(0.1 * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": grows * np.exp(0.3 * rng.normal(size=rows))}


def rounded(rng: Generator, rows: int) -> Columns:
    columns = fine_tuning(rng, rows)
    return {
        "loss": np.round(columns["loss"], 2),
        "grad_l2_pre_clip": np.round(columns["grad_l2_pre_clip"], 1),
        "lr": np.array([float(f"{v:.2g}") for v in columns["lr"]]),
    }


def late_segment(rng: Generator, rows: int) -> Columns:
    """A log that begins at step 100,000, where little is left to gain."""
    loss = (2.31 - 0.004 * np.arange(rows) / rows) * np.exp(0.012 * rng.normal(size=rows))
    return {
        "step": 100_000 + np.arange(rows),
        "loss": loss,
        "grad_l2_pre_clip": 0.25 * np.exp(0.15 * rng.normal(size=rows)),
        "lr": np.full(rows, 1e-4),
    }


def every_tenth_step(rng: Generator, rows: int) -> Columns:
    columns = pretraining(rng, rows)
    return {**columns, "step": 10 * np.arange(1, rows + 1)}


def half_precision(rng: Generator, rows: int) -> Columns:
    """fp16: overflows while the scaler calibrates, then one about every growth interval."""
    columns = pretraining(rng, rows)
    scale, skipped = run_scaler(limits(rows, int(rng.integers(1 << 30))), Policy())
    columns["grad_l2_pre_clip"][skipped] = np.where(rng.random(skipped.sum()) < 0.5, np.inf, np.nan)
    return {**columns, "skipped": skipped, "scaler_scale": scale}


KINDS: dict[str, Callable[[Generator, int], Columns]] = {
    kind.__name__: kind
    for kind in (
        pretraining,
        small_batch,
        fine_tuning,
        flat_fine_tuning,
        memorising,
        learned_but_for_a_few,
        vision,
        reinforcement,
        value_learning,
        restarts,
        bursty,
        sticky,
        drifting,
        curriculum,
        floor,
        near_zero,
        negative,
        diffusion,
        full_batch,
        unshuffled,
        low_rank,
        rounded,
        late_segment,
        every_tenth_step,
        half_precision,
    )
} | {
    "tails_t2": _tailed(2, 0.1),
    "tails_t2_wide": _tailed(2, 0.25),
    "tails_t3": _tailed(3, 0.2),
    "tails_t3_wide": _tailed(3, 0.35),
}


def healthy_columns(kind: str, seed: int, rows: int) -> Columns:
    """The columns of a healthy run: loss, norms before and after a clip at 1, lr, skips, scale."""
    rng = np.random.default_rng([seed, rows, list(KINDS).index(kind)])
    columns = KINDS[kind](rng, rows)
    columns.setdefault("lr", warmup_cosine(rows))
    columns.setdefault("skipped", np.zeros(rows, dtype=bool))
    columns.setdefault("scaler_scale", np.ones(rows))
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    return columns


def healthy_run(kind: str, seed: int, rows: int) -> Signals:
    """A healthy run of one kind."""
    return signals_of(healthy_columns(kind, seed, rows))


def found(rule: Rule, columns: Columns, manifest: Manifest | None = None) -> list[Finding]:
    """What one rule finds in a log of these columns; nothing where it lacks what it needs."""
    signals = signals_of(columns, manifest)
    if rule.why_skipped(signals):
        return []
    with np.errstate(all="ignore"):
        return list(rule.find(signals, rule.defaults))


def serious(findings: list[Finding]) -> list[Finding]:
    """Those of warning and worse."""
    return [finding for finding in findings if finding.severity > Severity.INFO]
