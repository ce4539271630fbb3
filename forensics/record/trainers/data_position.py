"""Where a rank is in its data, for its own log.

A trainer gives each process a loader of its own share. The position is the number of the batch in
that loader, from 0 in each epoch; of a step with several micro-batches that of the first.
"""

from __future__ import annotations

from typing import Any

from forensics.record.ranks.world import current_world
from forensics.record.recorder import Recorder


def note_position(recorder: Recorder, position: int | None) -> None:
    """Into this rank's row of the step under way; a run of one process has no such row.

    Args:
        recorder: of this rank.
        position: None where it is not known.
    """
    if position is not None and current_world().size > 1:
        recorder.note(data_position=position)


class CountedBatches:
    """Counts the batches of an epoch by what a Trainer tells its callbacks.

    Attributes:
        first: the first batch of the step under way; None where it cannot be known.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._drawn: int | None = 0
        self._skipped: int | None = 0

    def resume(self, epoch: float, loader: Any) -> None:
        """The training goes on within an epoch, and skips the batches that it has had.

        Args:
            epoch: with the share of it that has passed, as the Trainer counts.
            loader: of this rank; one that has no length cannot be counted in.
        """
        try:
            self._skipped = round(epoch % 1 * len(loader))
        except TypeError:
            self._skipped = None if epoch % 1 else 0

    def begin_epoch(self) -> None:
        """The loader begins anew."""
        self._drawn, self._skipped = self._skipped, 0

    def begin_step(self) -> None:
        """The next batch is the first one of a step."""
        self.first = self._drawn

    def count(self) -> None:
        """A micro-batch has gone backward."""
        if self._drawn is not None:
            self._drawn += 1
