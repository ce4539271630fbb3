"""Which rank this process is, and what all ranks agree on before the first step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from forensics.errors import ForensicsError, UsageError


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
    """The model inside DistributedDataParallel, DataParallel, ``torch.compile`` and Fabric."""
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """What one wrapper holds; None of a model in none."""
    if isinstance(model, DistributedDataParallel | DataParallel):
        return cast(nn.Module, model.module)
    inner = getattr(model, "_orig_mod", None) or model._modules.get("_forward_module")
    return inner if isinstance(inner, nn.Module) else None


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


def first_rank_with(flag: bool, world: World, device: torch.device) -> int | None:
    """The first rank whose flag is up, or None; one small all-reduce.

    It is of numbers of ranks, not of the values that the flag is about: gloo's MAX of those loses
    a NaN.
    """
    first = torch.tensor(world.rank if flag else world.size, dtype=torch.int32, device=device)
    dist.all_reduce(first, op=dist.ReduceOp.MIN)
    found = int(first.item())
    return found if found < world.size else None


@contextmanager
def launched(device: str, command: str = "record …") -> Iterator[World]:
    """The process group that a launcher such as torchrun wants, while the context lasts.

    Args:
        device: as the config names it.
        command: what the launcher runs, for what is said where it does not come together.

    Returns:
        This rank; alone where no launcher has said otherwise.

    Raises:
        UsageError: the launcher's word makes no sense, or the ranks do not find each other.
    """
    if current_world().size > 1 or _number("WORLD_SIZE", 1) == 1:
        yield current_world()
        return
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        torch.cuda.set_device(_number("LOCAL_RANK", 0))
    try:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    except (ValueError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"the ranks do not find each other: {line}",
            where="torch.distributed",
            hint=f"launch with `torchrun --nproc-per-node N -m forensics {command}`",
        ) from error
    try:
        yield current_world()
    finally:
        dist.destroy_process_group()


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise UsageError("is no number", where=f"environment variable {name}") from None
