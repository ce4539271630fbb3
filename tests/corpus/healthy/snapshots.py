"""Snapshots of a sound network, to be left as they are or to be made ill."""

from __future__ import annotations

import numpy as np

from forensics.runlog.manifest import Manifest
from tests.corpus.assemble import Sheet
from tests.corpus.noise import Floats, Rng
from tests.corpus.snapshots import MemoryActivations, MemoryParams
from tests.corpus.training import Training

SNAPSHOTS = 100


def snapshot_steps(rows: int, most: int = SNAPSHOTS) -> Floats:
    """Steps at which snapshots are taken: every so many, from 0."""
    every = max(1, rows // most)
    return np.arange(0, rows, every)


def healthy_params(training: Training, made: Manifest, steps: Floats | None = None) -> MemoryParams:
    """Gradient, value and update norms of every parameter, as sound training has them."""
    rng = training.rng
    at = snapshot_steps(training.rows) if steps is None else steps
    at = np.asarray(at, dtype=np.int64)
    infos = made.parameters
    shape = (len(at), len(infos))
    sizes = np.array([info.numel for info in infos], dtype=np.float64)
    # Gradient norms within a factor of three of each other; all follow the global norm.
    share = np.exp(0.5 * rng.standard_normal(len(infos))) / np.sqrt(len(infos))
    course = training.norm[at] * training.norm_factor[at]
    grad = course[:, None] * share * np.exp(0.2 * rng.standard_normal(shape))
    value = 0.05 * np.sqrt(sizes) * (1 + 0.2 * np.linspace(0, 1, len(at)))[:, None]
    value = value * np.ones(shape)
    ratio = 1e-3 * (training.lr[at] / max(training.lr.max(), 1e-12))[:, None]
    update = ratio * value * np.exp(0.2 * rng.standard_normal(shape))
    names = tuple(info.name for info in infos)
    return MemoryParams(
        at,
        {"param": names},
        {
            ("param", "grad_l2"): grad,
            ("param", "grad_absmax"): grad / np.sqrt(sizes) * 6,
            ("param", "grad_nonfinite"): np.zeros(shape),
            ("param", "value_l2"): value,
            ("param", "value_nonfinite"): np.zeros(shape),
            ("param", "update_l2"): update,
            ("param", "v_ratio"): np.exp(0.15 * rng.standard_normal(shape)),
        },
    )


def overflowed(params: MemoryParams, log: Sheet) -> None:
    """Where the scaler skipped an overflow, some elements of the last layers are Inf."""
    norm = np.asarray(log.values["grad_l2_pre_clip"])[params.taken_at]
    hit = ~np.isfinite(norm)
    params.data[("param", "grad_l2")][hit, -3:] = np.inf
    params.data[("param", "grad_absmax")][hit, -3:] = np.inf
    params.data[("param", "grad_nonfinite")][hit, -3:] = 12
    params.data[("param", "update_l2")][hit] = 0.0


def modules_of(made: Manifest) -> tuple[str, ...]:
    """The modules that own the weight matrices, in forward order."""
    return tuple(
        info.name.removesuffix(".weight") for info in made.parameters if "norm" not in info.name
    )


def healthy_activations(
    training: Training, made: Manifest, steps: Floats | None = None
) -> MemoryActivations:
    """Mean, std, abs-max and zero share of every module's output in a sound network."""
    rng: Rng = training.rng
    at = snapshot_steps(training.rows) if steps is None else steps
    modules = modules_of(made)
    shape = (len(at), len(modules))
    std = np.exp(0.3 * rng.standard_normal(len(modules)) + 0.05 * rng.standard_normal(shape))
    zeros = np.where([name.endswith("up") for name in modules], 0.5, 0.0) * np.ones(shape)
    return MemoryActivations(
        np.asarray(at),
        modules,
        {
            "mean": 0.05 * rng.standard_normal(shape),
            "std": std,
            "absmax": 6 * std,
            "zero_share": zeros,
            "nonfinite": np.zeros(shape),
        },
    )
