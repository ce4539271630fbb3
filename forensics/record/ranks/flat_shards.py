"""What FullyShardedDataParallel, the first FSDP, spreads over ranks.

It flattens the parameters of a module into one, of which each rank holds a piece. What the
optimizer holds are plain parameters all the same: these pieces, or with ``use_orig_params=True``
what of each parameter lies in this rank's piece. Their norms are of nothing whole; which of them
go into a sum over all ranks is known to the handle of each module alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

NAME = "FullyShardedDataParallel"


@dataclass(frozen=True)
class FlatShards:
    """The parameters of a model under it.

    Attributes:
        counts: does what this rank holds go into a sum over all ranks? By ``id`` of the parameter.
        shapes: of the whole tensors, likewise.
        flaw: why this version does not tell; empty where it does.
    """

    counts: Mapping[int, bool]
    shapes: Mapping[int, tuple[int, ...]]
    flaw: str = ""

    def counts_here(self, parameter: Tensor) -> bool:
        """Of what it leaves alone, rank 0's counts."""
        return self.counts.get(id(parameter), dist.get_rank() == 0)


def is_flat_sharded(model: nn.Module) -> bool:
    """Is it, or a module in it, under the first FSDP? Asked without importing that."""
    return any(map(_is_flat, model.modules()))


def flat_shards(model: nn.Module) -> FlatShards | None:
    """Which rank's parts count, and the whole shapes; None for any other model."""
    if not is_flat_sharded(model):
        return None
    counts: dict[int, bool] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    try:
        for module in model.modules():
            handle: Any = getattr(module, "_handle", None) if _is_flat(module) else None
            if handle is not None:
                here = _counts(handle)
                for parameter, shape in _members(handle):
                    counts[id(parameter)], shapes[id(parameter)] = here, shape
    except (AttributeError, TypeError, ValueError):
        return FlatShards({}, {}, f"this {NAME} does not tell which rank holds what")
    return FlatShards(counts, shapes)


def _is_flat(module: nn.Module) -> bool:
    kinds = type(module).__mro__
    return any(k.__name__ == NAME and k.__module__.startswith("torch.") for k in kinds)


def _counts(handle: Any) -> bool:
    """Replicas of a piece lie in other groups, and the group with rank 0 counts."""
    if not handle.uses_sharded_strategy:
        return dist.get_rank() == 0
    return 0 in dist.get_process_group_ranks(handle.process_group)


def _members(handle: Any) -> list[tuple[Tensor, tuple[int, ...]]]:
    flat = handle.flat_param
    if flat._params is None:
        return [(flat, tuple(flat._unpadded_unsharded_size))]
    return [(p, tuple(shape)) for p, shape in zip(flat._params, flat._shapes, strict=True)]
