"""What a recorder adds up over the ranks of a sharded model. Every rank calls all of it alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.optim import Optimizer

from forensics.record.clipping import GradNorms
from forensics.record.local_part import counts_here, local_part
from forensics.record.ranks.flat_shards import FlatShards
from forensics.record.ranks.sharded_norms import Named, ShardedNorms
from forensics.record.snapshots import PartOfTensor, Snapshot
from forensics.record.tensor_norms import combine

_Parts = Mapping[tuple[str, str], PartOfTensor]


class Shards:
    """Adds up norms and statistics of tensors that are spread over ranks.

    Args:
        parameters: (name, parameter) of the run; alike on all ranks.
        waiting: told before this rank waits for the others.
        apart: why the ranks cannot add up anything; then nothing is, and nobody waits.
        flat: of a model under the first FSDP, whose tensors have no whole form here: only norms.

    Attributes:
        counts: does what this rank holds of a parameter go into a sum over all ranks?
    """

    def __init__(
        self,
        parameters: Named,
        waiting: Callable[[], None],
        apart: str = "",
        flat: FlatShards | None = None,
    ) -> None:
        self._waiting, self.apart, self.flat = waiting, apart, flat
        self._device = local_part(parameters[0][1]).device
        self.counts: Callable[[Tensor], bool] = counts_here if flat is None else flat.counts_here
        self._norms = ShardedNorms(
            parameters, waiting, lambda p, grad: self.counts(grad if flat is None else p)
        )

    def follow(self, parameters: Named) -> None:
        """Other parameters are trained from now on, on every rank."""
        self._norms.follow(parameters)

    def grad_norms(self, members: Named, alongside: Sequence[Tensor] = ()) -> GradNorms:
        """As ``clipping.grad_norms``, over all ranks; NaN of nothing where they are apart."""
        if not self.apart:
            return self._norms(members, alongside)
        read = tuple(float(local_part(scalar)) for scalar in alongside)
        return GradNorms((), (), (), {}, math.nan, alongside=read)

    def begin(self) -> None:
        """``grad_norms`` comes next, if nothing fails before."""
        self._norms.begin()

    def norm_without(self, optimizers: Optimizer | Iterable[Optimizer]) -> float:
        """The global norm of what optimizers hold, where ``grad_norms`` has not come to its end."""
        chosen = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
        return self._norms.after_failure(
            [p for o in chosen for group in o.param_groups for p in group["params"]]
        )

    def whole(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Rank 0's snapshot with the parts of all; None on the other ranks.

        Args:
            snapshot: this rank's; None where it could not be taken.
        """
        leads = dist.get_rank() == 0
        given: list[Any] | None = [None] * dist.get_world_size() if leads else None
        self._waiting()
        dist.gather_object({} if snapshot is None else snapshot.parts, given, dst=0)
        if snapshot is None or given is None:
            return None
        for kind, (names, stats) in snapshot.kinds.items():
            for i, name in enumerate(names):
                parts = [part for rank in given if (part := rank.get((kind, name))) is not None]
                if parts:
                    for statistic, value in _joined(parts).items():
                        if statistic in stats:
                            stats[statistic][i] = value
        return snapshot

    def added_up(self, norms: Sequence[float]) -> list[float]:
        """Norms of all from those of this rank's parts that count; 0 for what it has none of."""
        squares = torch.tensor([norm * norm for norm in norms], dtype=torch.float64)
        squares = squares.to(self._device)
        self._waiting()
        dist.all_reduce(squares)
        return [math.sqrt(square) for square in squares.tolist()]


def _joined(parts: Sequence[PartOfTensor]) -> dict[str, Any]:
    """The statistics of one tensor from those of its parts."""
    counted = [part for part in parts if part.counts]
    bad = sum(part.nonfinite for part in counted) or sum(part.nonfinite for part in parts)
    elements = sum(part.numel for part in counted)
    joined: dict[str, Any] = {
        "value_l2": combine([part.l2 for part in counted]),
        "value_nonfinite": bad,
    }
    peaks = [part.absmax for part in parts if part.absmax is not None]
    if peaks:
        joined["grad_absmax"] = math.nan if any(map(math.isnan, peaks)) else max(peaks)
    ratios = [(part.v_ratio, part.numel) for part in counted if part.v_ratio is not None]
    if ratios and elements:
        mean = sum(ratio * ratio * numel for ratio, numel in ratios if numel) / elements
        joined["v_ratio"] = math.sqrt(mean)
    return joined
