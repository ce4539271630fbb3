"""How the parameters of a model are spread over ranks, in words."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from forensics.record.local_part import is_distributed
from forensics.record.ranks.flat_shards import NAME, is_flat_sharded
from forensics.record.ranks.fsdp_gradients import is_fully_sharded


def sharding_of(model: nn.Module) -> str:
    """``fully_shard``, ``tensor parallel`` or both, with a comma between; empty for a plain model.

    The first FSDP is told by its class.

    Args:
        model: without wrappers.
    """
    fully = any(map(is_fully_sharded, model.modules()))
    most = max(map(_dimensions_sharded, model.parameters()), default=0)
    found = [NAME] * is_flat_sharded(model)
    found += ["fully_shard"] * fully + ["tensor parallel"] * (most > fully)
    return ", ".join(found)


def _dimensions_sharded(parameter: Tensor) -> int:
    """Over how many dimensions of its mesh a parameter is cut up."""
    if not is_distributed(parameter):
        return 0
    return sum(not p.is_replicate() for p in cast(Any, parameter).placements)
