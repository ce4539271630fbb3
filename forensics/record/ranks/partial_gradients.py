"""Gradients that are still to be added up: under sequence parallelism those of a norm's weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from forensics.record.local_part import is_partial, local_part

_Group = tuple[Any, int, torch.dtype]
"""Mesh, its dimensions to add up over (a bit each), and dtype: what one collective can take."""


class PartialGradients:
    """Adds up what is partial, in one collective a mesh, into copies.

    Which parameters these are is learnt from all ranks, so that all of them take part.

    Args:
        parameters: of the run; alike on all ranks.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._known: dict[int, int] = {}

    def learn(self, found: Mapping[int, int]) -> bool:
        """Take in places of parameters and the dimensions they are partial in; is any new?"""
        fresh = {i: bits for i, bits in found.items() if bits and self._known.get(i) != bits}
        self._known |= fresh
        return bool(fresh)

    def made_whole(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of every gradient what this rank holds of it, added up where it was partial.

        Args:
            grads: one a parameter; None for one without.
        """
        parts = [None if grad is None else local_part(grad) for grad in grads]
        groups: dict[_Group, list[int]] = {}
        for i, bits in sorted(self._known.items()):
            parameter = cast(Any, self._parameters[i])
            groups.setdefault((parameter.device_mesh, bits, parameter.dtype), []).append(i)
        for (mesh, bits, _), members in groups.items():
            given = [self._contribution(i, grads[i]) for i in members]
            total = _added_up(torch.cat([part.flatten() for part in given]), mesh, bits)
            pieces = total.split([part.numel() for part in given])
            for i, part, piece in zip(members, given, pieces, strict=True):
                if parts[i] is not None and is_partial(cast(Tensor, grads[i])):
                    parts[i] = piece.view_as(part)
        return parts

    def _contribution(self, i: int, grad: Tensor | None) -> Tensor:
        """This rank's part of the sum; zeros where it has no gradient of this kind."""
        if grad is None or not is_partial(grad):
            return torch.zeros_like(local_part(self._parameters[i]))
        return local_part(grad)


def _added_up(flat: Tensor, mesh: Any, bits: int) -> Tensor:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    summed = [bool(bits >> i & 1) for i in range(mesh.ndim)]
    before = [Partial() if one else Shard(0) for one in summed]
    after = [Replicate() if one else Shard(0) for one in summed]
    spread = DTensor.from_local(flat, mesh, before, run_check=False)
    return local_part(spread.redistribute(placements=after))
