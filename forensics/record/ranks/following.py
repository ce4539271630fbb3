"""The ranks that do not write the run: the same recorder, with nothing of rank 0's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forensics.record.manifest_keeper import ManifestKeeper


class FollowingKeeper(ManifestKeeper):
    """Knows what ``run.json`` says, and leaves the writing to rank 0."""

    def update(self, **changes: Any) -> None:
        """Change some fields, in memory."""
        self.manifest = replace(self.manifest, **changes)


class FollowingFiles:
    """Takes the place of ``RunFiles``: rows, snapshots and statistics are rank 0's."""

    closed = False

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Nothing: a rank's own row goes to its own log."""

    def write_snapshot(self, snapshot: Any) -> None:
        """Nothing: replicas are alike."""

    def write_activations(self, step: int, modules: Any, stats: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is open."""
        self.closed = True
