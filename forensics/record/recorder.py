"""The recorder that any training loop can call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from forensics.record.clipping import GradNorms
from forensics.record.options import FREE_EXTRAS
from forensics.record.step_log import SkipLog, StepLog
from forensics.runlog.manifest import Ended, Manifest, Segment, write_manifest
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps_csv import StepWriter


class Recorder:
    """Writes a run directory."""

    replaying = False

    def __init__(self, run_dir: Path, *, manifest: Manifest, extras: Sequence[str] = ()) -> None:
        self.run_dir = run_dir
        self.columns = (*CANONICAL_NAMES, *FREE_EXTRAS, *extras)
        self._writer = StepWriter(run_dir / "steps.csv", self.columns)
        self._began = time.monotonic()
        self.manifest = replace(
            manifest, columns=self.columns, segments=(Segment(0, _now(), None, "start"),)
        )
        write_manifest(run_dir, self.manifest)
        self.last: StepLog | SkipLog | None = None

    def observe(self, grads: GradNorms) -> None:
        """Unscaled gradients, before the clip."""

    def write(self, log: StepLog | SkipLog) -> None:
        """The row of a finished step."""
        self.last = log
        row = {**log.row(), "time_s": time.monotonic() - self._began}
        self._writer.write({k: v for k, v in row.items() if k in self.columns})

    def close(self, ended: Ended) -> None:
        """Say how it ended."""
        self._writer.close()
        self.manifest = replace(
            self.manifest,
            ended=ended,
            segments=tuple(replace(s, ended=_now()) for s in self.manifest.segments),
        )
        write_manifest(self.run_dir, self.manifest)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
