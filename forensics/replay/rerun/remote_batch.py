"""A micro-batch that another process holds: its place, its size, and what of it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RemoteBatch:
    """Stands for a micro-batch of another rank.

    Attributes:
        place: among the micro-batches of its rank.
        size: samples in it.
        samples: the only ones that are used, by index; None for all.
    """

    place: int
    size: int
    samples: tuple[int, ...] | None = None

    def only(self, samples: Sequence[int]) -> RemoteBatch:
        """The same with these samples alone."""
        return replace(self, samples=tuple(samples), size=len(samples))
