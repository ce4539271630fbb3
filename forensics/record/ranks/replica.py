"""The model as one rank trains it: alone, or as one of several replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from forensics.record.ranks.world import World, first_rank_with
from forensics.runlog.schema import SKIP_NONFINITE_LOSS


class Replica:
    """The model of a training on one rank only.

    Attributes:
        module: what the loss is computed with.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = model

    def reduces(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; the gradients of the last are reduced."""
        return nullcontext()

    def loss_to_skip(self, loss: float) -> str:
        """Why the step is skipped before its last backward; empty where it is not."""
        return "" if math.isfinite(loss) else SKIP_NONFINITE_LOSS

    def give_up(self, loss: Tensor) -> None:
        """The step is skipped with the last backward not run; its gradients count for nothing."""


class DataParallelReplica(Replica):
    """One of several replicas whose gradients are averaged.

    Args:
        model: built alike on every rank, on its device.
        world: this rank among all.

    Attributes:
        reducing: called before this rank waits for the others' losses.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        device = next(model.parameters()).device
        self._ddp = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
        super().__init__(self._ddp)
        self._world, self._device = world, device
        self.reducing: Callable[[], object] = lambda: None

    def reduces(self, last: bool) -> AbstractContextManager[None]:
        """Gradients are only added up on this rank until the last micro-batch."""
        held: AbstractContextManager[None] = nullcontext() if last else self._ddp.no_sync()
        return held

    def loss_to_skip(self, loss: float) -> str:
        """All ranks skip where the loss of any is bad: one that goes on alone waits for ever."""
        self.reducing()
        rank = first_rank_with(not math.isfinite(loss), self._world, self._device)
        return "" if rank is None else f"{SKIP_NONFINITE_LOSS}:rank {rank}"

    def give_up(self, loss: Tensor) -> None:
        """Run it all the same: the forward has armed the reduction of the gradients that follow.

        Else those of the next step's first micro-batch would be reduced, though they are to be
        added up on this rank only: no longer its own, and other bits in the end.
        """
        loss.backward()


def replica_of(model: nn.Module, world: World) -> Replica:
    """The model in whatever this many ranks need."""
    return DataParallelReplica(model, world) if world.size > 1 else Replica(model)


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's own random numbers, once all have built the same model.

    Rank 0's is the run's own. The factor is a prime, so that neighbouring seeds share no rank's.
    """
    return (seed + rank * 1_000_003) % torch.iinfo(torch.int64).max
