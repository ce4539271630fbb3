"""Opening the run directory of a loop of one's own: new, continued, or taken up at a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import UsageError
from forensics.record.checkpoints import load_checkpoint
from forensics.record.continuing import continued
from forensics.record.own_checkpoints import put_back
from forensics.record.recipe import Training
from forensics.record.run_directory import ResumePoint, changing, newest_point
from forensics.runlog.files import RunLock
from forensics.runlog.manifest import MANIFEST_NAME, Manifest, read_manifest


@dataclass(frozen=True)
class Opened:
    """A run directory that is ready for its next row.

    Attributes:
        manifest: of the run so far, with segments where it is continued.
        first_step: the next step.
        lock: to be released at the end; None on a further rank.
        point: the state that was put back, if any.
    """

    manifest: Manifest
    first_step: int
    lock: RunLock | None = None
    point: ResumePoint | None = None


def open_directory(
    run_dir: Path,
    manifest: Manifest,
    columns: Sequence[str],
    training: Training,
    *,
    first_step: int,
    resume: bool,
    leads: bool,
    say: Callable[[str], None],
    load: Callable[[Path], Mapping[str, Any]] = load_checkpoint,
) -> Opened:
    """Take the directory, and put back the state to go on from.

    Args:
        run_dir: the run directory; made where it is missing.
        manifest: of the training as it is now.
        columns: of the step log as it would be now.
        training: all that a state holds.
        first_step: index of the next step; above 0 the run that lies there is continued.
        resume: find the newest state there, put it back, and continue from it.
        leads: False on a further rank: it puts the state back and leaves the directory alone.
        say: told of states that cannot be read.
        load: reads a state.

    Raises:
        UsageError: the directory holds a run already or is in use, or both ways to go on were asked
            for.
        InputError: the directory cannot be written, or the state is of another training. Nothing in
            the directory was changed.
    """
    if resume and first_step:
        raise UsageError("resume= finds the step by itself", where=f"first_step={first_step}")
    lock = _take(run_dir, goes_on=resume or first_step > 0) if leads else None
    try:
        point = None
        if resume and (run_dir / MANIFEST_NAME).exists():
            told = say if leads else _silently  # rank 0 has begun the run meanwhile, maybe
            point = newest_point(run_dir, read_manifest(run_dir), told, load)
            put_back(training, point, leads=leads)
            first_step = point.step
        if leads:
            manifest = continued(run_dir, manifest, columns, first_step)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return Opened(manifest, first_step, lock, point)


def _silently(line: str) -> None:
    """What rank 0 says already."""


def _take(run_dir: Path, *, goes_on: bool) -> RunLock:
    if not goes_on and (run_dir / MANIFEST_NAME).exists():
        raise UsageError(
            "holds a run already",
            where=run_dir,
            hint="choose another directory; resume=True or first_step= goes on with it",
        )
    lock = RunLock(run_dir, takeover=goes_on)
    with changing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    return lock
