"""A rank's own gradients under ``fully_shard``, measured just before they are scattered.

FSDP hands the gradients of one wrapped module, all of it, to a reduce-scatter that may be replaced
(``set_custom_reduce_scatter``). What takes its place here measures, and then calls the one that was
there. Which parameters lie where in the buffer is not public; where it cannot be told, only the
totals are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from forensics.record.ranks.local_gradients import (
    OwnGradients,
    SeenBucket,
    measured,
    norms_of,
    read_buckets,
)
from forensics.record.tensor_norms import measure

_OWN_MEMORY = ("SymmMem", "ProcessGroupAlloc")
"""Collectives whose buffers torch treats by their class: they stay as they are."""


class FsdpGradients(OwnGradients):
    """Measures the gradients of a model under ``fully_shard`` on this rank.

    Where micro-batches are each reduced by themselves, the norm is that of the last one, or of the
    first bad one; elements that are not finite are counted in all of them.

    Args:
        model: with modules under ``fully_shard``.
        names: of the parameters, by ``id``.
        waits: told True before this rank waits for the others, False after it.
        say: told in one clause why nothing can be measured.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Mapping[int, str],
        waits: Callable[[bool], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(names)
        self._waits, self._say = waits, say
        self._modules = [module for module in model.modules() if is_fully_sharded(module)]
        self._seen: list[tuple[int, SeenBucket, float]] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        # At the first forward, so that the loop may replace the collectives itself until then.
        self._first_run: list[RemovableHandle] = [
            module.register_forward_pre_hook(self._attach, prepend=True) for module in self._modules
        ]
        if any(map(_has_run, self._modules)):  # a trainer tells of itself only later
            self._attach()

    def saw(self, group: Any, buffer: Tensor) -> None:
        """The gradients of one module are about to be scattered; no error of it may end that."""
        try:
            bucket = _seen_as_one(buffer) or measured(_Scattered(group, buffer))
            self._seen.append((id(group), bucket, _divided_by(group, buffer.dtype)))
        except Exception as error:  # noqa: BLE001 - a record is never worth a training
            self._say(f"local gradient norms: {type(error).__name__} while they were measured")

    def waiting(self, device: torch.device, *, begins: bool) -> None:
        """The host waits in a collective, as it does without a device of its own."""
        if device.type == "cpu":
            self._waits(begins)

    def fetch(self) -> None:
        """Read what was seen since the last step."""
        seen, self._seen = self._seen, []
        if not seen:
            return
        read_buckets([bucket for _, bucket, _ in seen])
        chosen: dict[int, SeenBucket] = {}
        for owner, bucket, factor in seen:
            bucket.norms = [float(norm) * factor for norm in bucket.norms]
            if owner not in chosen or not chosen[owner].nonfinite:
                chosen[owner] = bucket
        norms = norms_of(list(chosen.values()))
        every = sum(int(bucket.nonfinite) for _, bucket, _ in seen)
        self._norms = type(norms)(norms.total, every, norms.bad)

    def close(self) -> None:
        """Put back the collectives that were there."""
        for hook in self._first_run:
            hook.remove()
        for group, name, ours, theirs in self._replaced:
            if getattr(group, name) is ours:
                setattr(group, name, theirs)
        self._first_run, self._replaced = [], []

    def _attach(self, *_: Any) -> None:
        for hook in self._first_run:
            hook.remove()
        self._first_run = []
        try:
            for module in self._modules:
                self._replace(module)
        except (AttributeError, ValueError, TypeError) as error:
            self.close()
            line = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            self._say(f"local gradient norms: this fully_shard does not let them be seen ({line})")

    def _replace(self, module: Any) -> None:
        for group in module._get_fsdp_state()._fsdp_param_groups:
            scatter, gather = group._reduce_scatter_comm, group._all_gather_comm
            if type(scatter).__name__.startswith(_OWN_MEMORY):
                raise ValueError(f"{type(scatter).__name__} allocates its buffers itself")
            ours = _MeasuringScatter(scatter, group, self)
            module.set_custom_reduce_scatter(ours)
            self._replaced.append((group, "_reduce_scatter_comm", ours, scatter))
            waiting = _MarkedGather(gather, self)
            module.set_custom_all_gather(waiting)
            self._replaced.append((group, "_all_gather_comm", waiting, gather))


def _seen_as_one(buffer: Tensor) -> SeenBucket | None:
    """A sound buffer on the CPU, in one pass; a parameter's part of it lies in pieces, and is slow.

    Elsewhere the host does not wait to see whether it is sound.
    """
    if buffer.device.type != "cpu":
        return None
    found = measure([buffer])
    return None if found.nonfinite[0] else SeenBucket([None], found.l2, 0)  # type: ignore[list-item]


class _Marked:
    """A collective of FSDP that says when this rank waits in it."""

    def __init__(self, inner: Any, owner: FsdpGradients) -> None:
        self._inner, self._owner = inner, owner

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer, by whatever allocated it before."""
        made: Tensor = self._inner.allocate(size, dtype=dtype, device=device)
        return made

    def _call(self, device: torch.device, *args: Any, **kwargs: Any) -> Any:
        self._owner.waiting(device, begins=True)
        done = self._inner(*args, **kwargs)
        self._owner.waiting(device, begins=False)  # where it raised, this rank waited to the end
        return done


class _MarkedGather(_Marked):
    """The all-gather of one module's parameters."""

    def __call__(self, output_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._call(output_tensor.device, output_tensor, *args, **kwargs)


class _MeasuringScatter(_Marked):
    """The reduce-scatter of one module's gradients."""

    def __init__(self, inner: Any, group: Any, owner: FsdpGradients) -> None:
        super().__init__(inner, owner)
        self._group = group

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        self._owner.saw(self._group, input_tensor)
        return self._call(input_tensor.device, output_tensor, input_tensor, *args, **kwargs)


class _Scattered:
    """The buffer of a reduce-scatter, as ``measured`` wants a bucket.

    It is a row a rank. In each row lie, one after the other, the chunks of all parameters, padded
    with zeros to the length of the first rank's.
    """

    def __init__(self, group: Any, buffer: Tensor) -> None:
        self._buffer = buffer
        members = [p for p in getattr(group, "fsdp_params", ()) if p.sharded_param.requires_grad]
        ranks = int(getattr(getattr(group, "mesh_info", None), "shard_mesh_size", 0))
        widths = [int(p.padded_sharded_param_size.numel()) for p in members] if ranks else []
        self._known = bool(widths) and ranks * sum(widths) == buffer.numel()
        self._members, self._ranks, self._widths = members, ranks, widths

    def buffer(self) -> Tensor:
        """All of it."""
        return self._buffer

    def gradients(self) -> list[Tensor]:
        """A view of each parameter's, or of all where it is not known which lies where."""
        if not self._known:
            return [self._buffer]
        return [*reversed(self._buffer.view(self._ranks, -1).split(self._widths, dim=1))]

    def parameters(self) -> list[Any]:
        """Whose gradients these are, nearest the loss first."""
        return [m.sharded_param for m in reversed(self._members)] if self._known else [None]


def is_fully_sharded(module: nn.Module) -> bool:
    """Is it a module under ``fully_shard``? Asked without importing that."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _has_run(module: Any) -> bool:
    """Has a forward passed?"""
    state = getattr(module, "_get_fsdp_state", lambda: None)()
    return getattr(state, "_is_root", None) is not None


def _divided_by(group: Any, dtype: torch.dtype) -> float:
    """What the buffer was divided by before: FSDP guards narrow exponents so, by about √ranks.

    As ``_get_gradient_divide_factors`` of ``torch.distributed.fsdp`` 2.13 does.
    """
    if dtype in (torch.float32, torch.bfloat16):
        return 1.0
    ranks = group.mesh_info.mesh.size()
    factor, before = float(group.gradient_divide_factor or ranks), 1.0
    while factor % before == 0 and factor / before > before:
        before *= 2
    return before
