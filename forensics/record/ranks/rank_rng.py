"""The random numbers of every rank, in rank 0's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import distributed as dist

from forensics.record.ranks.replica import rank_seed
from forensics.record.ranks.world import World
from forensics.record.rng import restore_rng, rng_state, seed_everything

KEY = "ranks"
"""Where they are in a checkpoint: ``{"rng": [rank 0's, rank 1's, …]}``."""


class RankRng:
    """The generators of all ranks, gathered for a checkpoint and put back from one.

    Args:
        world: this rank among all; every rank must ask for the state when one does.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def seed(self, seed: int) -> None:
        """After building: other numbers on every rank, rank 0's as in a training of one."""
        if not self._world.leads:
            seed_everything(rank_seed(seed, self._world.rank))

    def state_dict(self) -> dict[str, Any]:
        """All ranks' states; on the other ranks than 0 nothing."""
        if self._world.size == 1:
            return {}
        states: list[Any] | None = [None] * self._world.size if self._world.leads else None
        dist.gather_object(rng_state(), states, dst=0)
        return {"rng": states} if states is not None else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """This rank's own, from a loaded checkpoint; as they are where it has none."""
        states = rng_states(state)
        if self._world.rank < len(states):
            restore_rng(states[self._world.rank])


def rng_states(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The generators of all ranks in a loaded checkpoint; none in that of a single process."""
    ranks = state.get(KEY)
    states = ranks.get("rng") if isinstance(ranks, Mapping) else None
    return states if isinstance(states, list) else ()
