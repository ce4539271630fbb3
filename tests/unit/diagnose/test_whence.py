"""Whence to go on: never from a state that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.whence import whence
from forensics.runlog.checkpoint_files import CheckpointInfo
from forensics.runlog.manifest import Manifest, SavedAt, Segment
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

RESUME = "Resume from a checkpoint before step 59"
NONE = "Start anew (no saved state is from before step 59)"
OWN = "Start anew, or from a state of your own from before step 59 (the run names none)"


def checkpoint(step: int, healthy: bool | None = None) -> CheckpointInfo:
    return CheckpointInfo(step, Path(f"step-{step}.pt"), healthy, {})


@pytest.mark.parametrize(
    ("manifest", "checkpoints", "told"),
    [
        (None, (), RESUME),
        (Manifest(), (), OWN),
        (Manifest(states=(SavedAt(60, "a"), SavedAt(80, "b"))), (), NONE),
        (Manifest(states=(SavedAt(59, "a"), SavedAt(80, "b"))), (), RESUME),
        (Manifest(), (checkpoint(60),), NONE),
        (Manifest(), (checkpoint(40, healthy=False), checkpoint(60)), NONE),
        (Manifest(), (checkpoint(0), checkpoint(60)), RESUME),
        (Manifest(checkpoints={"best": None, "last_healthy": 40}), (), RESUME),
        (Manifest(segments=(Segment(), Segment(start_step=30))), (), RESUME),
        (Manifest(segments=(Segment(), Segment(start_step=90))), (), OWN),
    ],
)
def test_it_goes_by_the_states_that_the_run_knows(
    manifest: Manifest | None, checkpoints: tuple[CheckpointInfo, ...], told: str
) -> None:
    steps = StepTable.from_arrays({"loss": [1.0]})
    run = Run(path=Path("x"), steps=steps, manifest=manifest, checkpoints=checkpoints)
    assert whence(run, 59) == told
