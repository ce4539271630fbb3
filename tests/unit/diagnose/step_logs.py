"""Small step logs for the rules on single rows: a calm run, and what a test changes in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest, ScalerPolicy
from forensics.runlog.run import CheckpointInfo, Run
from forensics.runlog.steps import StepTable

NAN, INF = float("nan"), float("inf")
TORCH = ScalerPolicy(enabled=True, init_scale=65536.0)
FP16 = Manifest(precision="fp16", device="cuda", autocast_device="cuda", scaler=TORCH)
FP32 = Manifest(precision="fp32", device="cpu", scaler=ScalerPolicy())


def calm(rows: int, **columns: Any) -> dict[str, Any]:
    """Columns of a calm fp32 run; a keyword replaces a column, None leaves it out."""
    rng = np.random.default_rng(rows)
    norm = np.exp(0.2 * rng.normal(size=rows))
    table: dict[str, Any] = {
        "step": np.arange(rows),
        "lr": np.full(rows, 1e-3),
        "grad_l2_pre_clip": norm,
        "grad_l2_post_clip": np.minimum(norm, 1.0),
        "loss": 2.0 + 0.05 * rng.normal(size=rows),
        "skipped": np.zeros(rows, dtype=bool),
        "scaler_scale": np.ones(rows),
        **columns,
    }
    return {name: values for name, values in table.items() if values is not None}


def run_of(
    columns: Mapping[str, Any],
    manifest: Manifest | None = None,
    masks: Mapping[str, Any] | None = None,
    params: Any = None,
    checkpoints: Sequence[CheckpointInfo] = (),
) -> Signals:
    """The signals of a run with these columns; the norm after the clip is absent on skips."""
    written = dict(masks or {})
    if {"skipped", "grad_l2_post_clip"} <= columns.keys():
        written.setdefault("grad_l2_post_clip", ~np.asarray(columns["skipped"], dtype=bool))
    steps = StepTable.from_arrays(columns, written)
    run = Run(
        path=Path("runs/x"),
        steps=steps,
        manifest=manifest,
        params=params,
        checkpoints=tuple(checkpoints),
    )
    return Signals(run)


def with_values(values: Any, rows: Any, value: Any) -> np.ndarray:
    """A copy with some rows replaced."""
    changed = np.array(values)
    changed[rows] = value
    return changed
