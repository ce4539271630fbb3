"""A recorded run as one frozen value; any part may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.runlog.activations import ActivationStore
from forensics.runlog.manifest import Manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.steps import StepTable


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
