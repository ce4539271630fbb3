"""Keeping ``run.json`` up to date while the run goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forensics.errors import RecordingStoppedError, TrainingRaisedError
from forensics.record.disk_guard import DiskGuard
from forensics.runlog.manifest import Ended, Manifest, Segment, write_manifest


class ManifestKeeper:
    """The manifest of a run under way: opens and closes its segment, replaces the file whole.

    Args:
        run_dir: the run directory.
        manifest: of the run so far; with segments when it is resumed.
        guard: an unwritable file is noted there.
        first_step: where this segment begins.
    """

    def __init__(
        self, run_dir: Path, manifest: Manifest, guard: DiskGuard, *, first_step: int = 0
    ) -> None:
        self._run_dir, self._guard = run_dir, guard
        guard.carry(manifest.missing)
        segment = Segment(first_step, now(), None, "resume" if manifest.segments else "start")
        self.manifest = replace(manifest, segments=(*manifest.segments, segment), ended=None)

    def update(self, **changes: Any) -> None:
        """Change some fields and write the file."""
        self.manifest = replace(self.manifest, **changes)
        with self._guard.writing("run.json"):
            current = replace(self.manifest, missing=self._guard.missing)
            write_manifest(self._run_dir, current)

    def close(self, ended: Ended) -> None:
        """Say how the run ended, and when."""
        *earlier, segment = self.manifest.segments
        self.update(ended=ended, segments=(*earlier, replace(segment, ended=now())))


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def ending_of(error: BaseException, step: int) -> Ended:
    """What to write of a run that this error ended.

    Args:
        error: that left the loop.
        step: the step under way.
    """
    if isinstance(error, KeyboardInterrupt):
        return Ended("interrupted", step)
    if isinstance(error, SystemExit) and not error.code:
        return Ended("finished", step - 1 if step else None)  # sys.exit(): it meant to stop here
    if isinstance(error, RecordingStoppedError):
        return Ended("alarm", step - 1, error.what)
    if isinstance(error, TrainingRaisedError):
        return Ended("exception", step, error.what)
    return Ended("exception", step, f"{type(error).__name__}: {error}")
