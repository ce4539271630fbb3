"""What autograd saves for backward, held against what it finds there: silent in-place edits.

Autograd notices an edit by the version of a tensor. One through ``.data`` (or by a foreign library)
leaves the version as it is, and backward computes a finite, wrong gradient from the edited values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from forensics.replay.tracing.node_sites import node_name, site_of_node
from forensics.replay.tracing.operator_call import storage_key
from forensics.replay.tracing.tensor_stats import TensorStats, stats_of


@dataclass(frozen=True, kw_only=True)
class EditedTensor:
    """A saved tensor that backward found changed.

    Attributes:
        autograd_node: the node that uses it, such as ``ExpBackward0``.
        module: in whose forward that node was made.
        source_line: the user's line there.
        stats: the tensor as backward found it.
    """

    autograd_node: str
    module: str
    source_line: str
    stats: TensorStats | None


@dataclass
class _Packed:
    """One saved tensor: an alias of it, its fingerprint, and a copy where one is kept."""

    alias: Tensor
    fingerprint: tuple[float, int] | None
    copy: Tensor | None


class SavedTensors:
    """Watches the tensors that a step saves for backward.

    Args:
        model: its buffers are left out: BatchNorm's statistics are saved, and then updated.
        repair: give backward what was saved rather than what is there now.
    """

    def __init__(self, model: nn.Module, *, repair: bool = False) -> None:
        self.edited: list[EditedTensor] = []
        self._buffers = {storage_key(b) for b in model.buffers() if _is_plain(b)}
        self._repair = repair

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context lasts; without ``repair`` no bit of the step changes."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def _pack(self, tensor: Tensor) -> _Packed:
        with _disable_current_modes(), torch.no_grad():
            # An alias, for an output that holds itself would never be freed.
            alias = tensor.detach()
            if not _is_plain(alias) or storage_key(alias) in self._buffers:
                return _Packed(alias, None, None)
            return _Packed(alias, fingerprint(alias), alias.clone() if self._repair else None)

    def _unpack(self, packed: _Packed) -> Tensor:
        if packed.copy is not None:
            return packed.copy
        if packed.fingerprint is not None:
            with _disable_current_modes(), torch.no_grad():
                if fingerprint(packed.alias) != packed.fingerprint:
                    self._note(packed.alias)
        return packed.alias

    def _note(self, tensor: Tensor) -> None:
        node = torch._C._current_autograd_node()
        site = None if node is None else site_of_node(node)
        self.edited.append(
            EditedTensor(
                autograd_node="" if node is None else node_name(node),
                module=site.module if site else "",
                source_line=site.source_line if site else "",
                stats=stats_of(tensor) if tensor.is_floating_point() else None,
            )
        )


def _is_plain(tensor: Any) -> bool:
    """Dense, with memory of its own: what can be edited and compared."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and not tensor.is_complex()
        and not tensor.is_quantized
    )


def fingerprint(tensor: Tensor) -> tuple[float, int]:
    """Two sums over all elements: equal for equal contents, and all but never for others.

    A hash alone is blind to pairs of equal elements, the sum to edits that cancel out. Where torch
    has no hash for the device, the sum stands alone.
    """
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    wide = torch.float32 if values.device.type == "mps" else torch.float64
    total = float(values.sum(dtype=wide))
    try:
        hashed = int(torch.hash_tensor(values).view(torch.int64))
    except (AttributeError, NotImplementedError):
        hashed = 0
    # NaN equals nothing, itself not either; what is non-finite is another check's business.
    return total if total == total else 0.0, hashed
