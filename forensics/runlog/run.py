"""A recorded run as one frozen value; any part may be missing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.runlog.activations import ActivationStore
from forensics.runlog.manifest import MANIFEST_NAME, Manifest, read_manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps


@dataclass(frozen=True)
class CheckpointInfo:
    """A saved state and what its health file says, read without torch.

    Attributes:
        step: the state is the one *before* this step.
        path: the checkpoint file.
        healthy: False when something in it is non-finite; None when no health file tells.
        health: the parsed ``step-N.health.json``, or empty.
    """

    step: int
    path: Path
    healthy: bool | None
    health: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: the run directory, or the step log when that is all there is.
        steps: the step log.
        manifest: ``run.json``, or None.
        params: per-parameter snapshots, or None.
        checkpoints: in ascending order of step.
        activations: per-module activation statistics, or None.
        ranks: per rank ≥ 1 its own local losses and norms, taken before the reduction.
        bisection: the parsed ``bisect.json`` of the last bisection, or None.
        superseded: step logs that resumes replaced, oldest first.
    """

    path: Path
    steps: StepTable
    manifest: Manifest | None = None
    params: ParamStore | None = None
    checkpoints: tuple[CheckpointInfo, ...] = ()
    activations: ActivationStore | None = None
    ranks: tuple[StepTable, ...] = ()
    bisection: dict[str, Any] | None = None
    superseded: tuple[StepTable, ...] = ()


def load_run(path: str | os.PathLike[str]) -> Run:
    """Load a run directory, or a step log alone."""
    source = Path(path)
    directory = source if source.is_dir() else source.parent
    if not source.is_dir() and not (directory / MANIFEST_NAME).exists():
        return Run(path=source, steps=read_steps(source))
    return Run(
        path=directory,
        steps=read_steps(directory / "steps.csv"),
        manifest=read_manifest(directory) if (directory / MANIFEST_NAME).exists() else None,
    )
