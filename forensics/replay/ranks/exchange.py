"""Talking and reducing among the ranks of a replay; who loses the others stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.utils._python_dispatch import _disable_current_modes

from forensics.record.ranks.world import World

BUCKET_BYTES = 25 << 20
"""Of gradients that are reduced at once, as in DistributedDataParallel."""


class RankLostError(KeyboardInterrupt):
    """Another rank has ended, so the replay cannot go on.

    An interrupt, because it must end a bisection as Ctrl-C does: from any place, through whatever
    takes exceptions of the training for evidence, and with what is known by then.
    """


class Exchange:
    """The collectives of a replay, of which every rank must call the same in the same order.

    Attributes:
        world: this rank among all.
        gone: another rank has ended.
        talking: rank 0 has said something that is not carried out to its end yet; it puts this
            down when it is. Whoever is stopped before that is out of step with the others.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.gone = self.talking = False
        self._inside = False

    @property
    def lost(self) -> bool:
        """Can this rank reach the others no more?"""
        return self.gone or self.talking or self._inside

    def say(self, message: Any = None) -> Any:
        """What rank 0 says, on every rank; the others' argument does not matter."""
        held = [message]
        self.talking = self.world.leads
        with self._together():
            dist.broadcast_object_list(held, src=0)
        return held[0]

    def hear(self, message: Any) -> list[Any]:
        """What every rank says, on rank 0; nothing on the others."""
        heard: list[Any] | None = [None] * self.world.size if self.world.leads else None
        with self._together():
            dist.gather_object(message, heard, dst=0)
        return heard or []

    def share(self, message: Any) -> list[Any]:
        """What every rank says, on every rank."""
        heard: list[Any] = [None] * self.world.size
        with self._together():
            dist.all_gather_object(heard, message)
        return heard

    @torch.no_grad()
    def hand_out(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values, into every rank's tensors."""
        # Not at the top: one process bisects with a torch that was built without distributed, too.
        from torch._C._distributed_c10d import _broadcast_coalesced

        held = [tensor.detach() for tensor in tensors if tensor.numel()]
        group = dist.group.WORLD
        if held and group is not None:
            with self._together():
                _broadcast_coalesced(group, held, BUCKET_BYTES, 0)

    @torch.no_grad()
    def average(self, gradients: Sequence[Tensor]) -> None:
        """The mean over all ranks, in place: divided first and then added up, as replicas do."""
        with self._together():
            for bucket in _buckets([g for g in gradients if not g.is_sparse]):
                flat = _flatten_dense_tensors(bucket).div_(self.world.size)
                dist.all_reduce(flat)
                for own, mean in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                    own.copy_(mean)
            for gradient in gradients:
                if gradient.is_sparse:
                    dist.all_reduce(gradient.div_(self.world.size))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Around collectives."""
        before, self._inside = self._inside, True
        if before or self.gone:
            raise RankLostError("another rank of the replay has ended")
        try:
            with _disable_current_modes():
                yield
        except RuntimeError as error:  # what gloo and NCCL say of a peer that is gone, or too slow
            self.gone = True
            raise RankLostError("another rank of the replay has ended") from error
        self._inside = False


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type and device, up to so many bytes together."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        bucket = kinds.setdefault((tensor.dtype, tensor.device), [])
        held = sum(t.numel() * t.element_size() for t in bucket)
        if bucket and held + tensor.numel() * tensor.element_size() > BUCKET_BYTES:
            yield list(bucket)
            bucket.clear()
        bucket.append(tensor)
    yield from (bucket for bucket in kinds.values() if bucket)
