"""A tensor that is spread over several ranks (a DTensor), as this rank alone has it.

Whatever a DTensor is asked may start a collective, and one that not all ranks start alike never
ends. So the recorder measures local parts, and adds them up over the ranks in few places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist

_PLAIN = (Tensor, nn.Parameter)


def is_distributed(tensor: Any) -> bool:
    """Is it a DTensor? Asked without importing it, which takes half as long as torch itself."""
    return type(tensor) not in _PLAIN and hasattr(tensor, "device_mesh")


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: of a DTensor its shard or replica, else the tensor."""
    if not is_distributed(tensor):
        return tensor
    with torch.no_grad():
        part = cast(Any, tensor).to_local()
        return cast(Tensor, part.wait() if hasattr(part, "wait") else part)


def counts_here(tensor: Tensor) -> bool:
    """Does this rank's part go into a sum over all ranks?

    Of replicas only the first counts, in each dimension of the mesh that replicates or whose ranks
    add up to the tensor; of a tensor that is no DTensor that of rank 0. Where a mesh is a part of
    all ranks (``mesh["dp"]`` beside tensor parallelism), the other parts of that kind hold replicas
    of it, and the one with rank 0 counts. A shard within it always does.
    """
    if not is_distributed(tensor):
        return not dist.is_initialized() or dist.get_rank() == 0
    spread = cast(Any, tensor)
    here = spread.device_mesh.get_coordinate()
    return (
        here is not None
        and _has_rank_zero(spread.device_mesh)
        and not any(
            coordinate and (placement.is_replicate() or placement.is_partial())
            for coordinate, placement in zip(here, spread.placements, strict=True)
        )
    )


def is_partial(tensor: Tensor) -> bool:
    """Must its parts still be added up over some ranks?"""
    return bool(partial_dimensions(tensor))


def partial_dimensions(tensor: Tensor) -> int:
    """Over which dimensions of its mesh that must be done: a bit each."""
    if not is_distributed(tensor):
        return 0
    placements = cast(Any, tensor).placements
    return sum(1 << i for i, placement in enumerate(placements) if placement.is_partial())


@lru_cache(maxsize=64)
def _has_rank_zero(mesh: Any) -> bool:
    return bool((mesh.mesh == 0).any())
