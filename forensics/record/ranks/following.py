"""The ranks that do not write the run: the same recorder, with nothing of rank 0's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from forensics.record.manifest_keeper import ManifestKeeper


class FollowingKeeper(ManifestKeeper):
    """Knows what ``run.json`` says, and leaves the writing to rank 0, or to a fork's parent."""

    @classmethod
    def of(cls, keeper: ManifestKeeper) -> Self:
        """The same knowledge, without the writing."""
        following = cls.__new__(cls)
        vars(following).update(vars(keeper))
        return following

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


class ForkFiles(FollowingFiles):
    """The same in a fork of the process that records; it says once that it trains in vain.

    Args:
        say: told so.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] | None = say

    def write_row(self, row: Mapping[str, Any]) -> None:
        """Nothing: the run is the parent's."""
        say, self._say = self._say, None
        if say is not None:
            say(
                "a fork of the process that made the Recorder trains, and is not recorded: make "
                "the Recorder in the process that trains"
            )
