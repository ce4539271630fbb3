"""Going on with a run that lies in the directory already, under a loop of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forensics.errors import UsageError
from forensics.runlog.files import supersede
from forensics.runlog.manifest import MANIFEST_NAME, Manifest, read_manifest


def continued(run_dir: Path, manifest: Manifest, columns: Sequence[str], step: int) -> Manifest:
    """Move aside what is going to be done again, and take over what the run was so far.

    Call it with the run's lock held.

    Args:
        run_dir: the run directory; where it holds no run, nothing is done.
        manifest: of the training as it is now.
        columns: of the step log as it would be now.
        step: the next step.

    Raises:
        UsageError: the run was recorded with other columns; nothing was changed.
        InputError: its manifest cannot be read.
    """
    if not (run_dir / MANIFEST_NAME).exists():
        return manifest
    before = read_manifest(run_dir)
    if before.columns and tuple(before.columns) != tuple(columns):
        odd = sorted(set(before.columns) ^ set(columns))
        raise UsageError(
            f"was recorded with other columns ({', '.join(odd) or 'in another order'})",
            where=run_dir,
            hint="go on with the same extras and parameter groups, or choose another directory",
        )
    supersede(run_dir, step)
    return replace(
        manifest,
        recipe=manifest.recipe or before.recipe,
        seeds=manifest.seeds or before.seeds,
        segments=before.segments,
        arrival_order=before.arrival_order,
        loop=before.loop,
        states=tuple(state for state in before.states if state.step <= step),
        checkpoints=before.checkpoints,
        missing=before.missing,
        unknown=before.unknown,
    )
