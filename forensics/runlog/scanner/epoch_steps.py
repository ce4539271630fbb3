"""Steps of logs that count batches anew in each epoch and do not say how many there are."""

from __future__ import annotations


class EpochSteps:
    """Numbers the batches of all epochs through, by how far each epoch was seen to go.

    An epoch begins after the last batch that was logged of the one before it; ranks that are still
    at the epoch before do no harm, and a restart finds an epoch where it was.

    Args:
        first: number of the first batch of an epoch.
    """

    def __init__(self, first: int = 1) -> None:
        self._first = first
        self._starts: dict[int, int] = {}
        self._lengths: dict[int, int] = {}

    def step(self, epoch: int, batch: int) -> int:
        """The step of a batch, both as the log counts them."""
        if epoch not in self._starts:
            before = max((e for e in self._starts if e < epoch), default=None)
            self._starts[epoch] = 0
            if before is not None:
                length = self._lengths[before]
                self._starts[epoch] = self._starts[before] + (epoch - before) * length
        self._lengths[epoch] = max(self._lengths.get(epoch, 0), batch + 1 - self._first)
        return self._starts[epoch] + batch
