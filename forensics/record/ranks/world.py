"""Which rank this process is, and what all ranks agree on before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from forensics.errors import ForensicsError


@dataclass(frozen=True)
class World:
    """This process among all that train together.

    Attributes:
        rank: its number.
        size: how many there are; 1 without ``torch.distributed``.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Is it the one that writes the run?"""
        return self.rank == 0


def current_world() -> World:
    """The default process group, where it is initialised."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size())


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and ``torch.compile``."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


@contextmanager
def led_by_rank_zero(world: World) -> Iterator[None]:
    """What rank 0 does alone before the others go on; where it fails, all of them fail so.

    Every rank must enter. The body is rank 0's: the others' must be empty of its work.

    Raises:
        ForensicsError: rank 0's own, on every rank.
    """
    if world.size == 1:
        yield
        return
    told: list[Any] = [None]
    failure: ForensicsError | None = None
    try:
        yield
    except ForensicsError as error:
        failure = error
        told = [(type(error), error.what, str(error.where or ""), error.hint)]
    dist.broadcast_object_list(told, src=0)
    if failure is not None:
        raise failure
    if told[0] is not None:
        kind, what, where, hint = told[0]
        raise kind(what, where=where, hint=hint)


def any_rank(flag: bool, world: World, device: torch.device) -> bool:
    """Is the flag up on any rank? One small all-reduce.

    A flag, for gloo's MAX of the values themselves loses a NaN.
    """
    if world.size == 1:
        return flag
    raised = torch.tensor([1 if flag else 0], dtype=torch.int32, device=device)
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return bool(raised.item())
