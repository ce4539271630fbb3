"""The states that a loop or trainer saved by itself, as ``run.json`` notes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.checkpoint_files import CheckpointInfo
from forensics.runlog.manifest import MANIFEST_NAME, SavedAt, read_manifest
from forensics.runlog.run import Run


def with_noted_states(run: Run) -> Run:
    """A run that has no checkpoints of its own, with those that others have saved of it."""
    if run.checkpoints or run.manifest is None or not run.path.is_dir():
        return run
    found = noted_paths(run.path, run.manifest.states)
    return replace(run, checkpoints=tuple(CheckpointInfo(n, path, None, {}) for n, path in found))


def noted_in(folder: Path) -> list[tuple[int, Path]]:
    """The same of a run directory, as (step, path); empty for any other folder."""
    if not (folder / MANIFEST_NAME).is_file():
        return []
    try:
        return noted_paths(folder, read_manifest(folder).states)
    except InputError:
        return []


def noted_paths(folder: Path, states: tuple[SavedAt, ...]) -> list[tuple[int, Path]]:
    """Where the noted states lie, those that are still there, in ascending order of step."""
    found = {}
    for state in states:
        try:
            path = (folder / state.path).resolve()
            if state.path and path.exists():
                found[state.step] = path
        except (OSError, ValueError, RuntimeError):  # a name that no file can have
            continue
    return sorted(found.items())
