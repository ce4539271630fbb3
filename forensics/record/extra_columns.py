"""The optional columns of the step log: gathered on the device and read at once."""

from __future__ import annotations

import hashlib
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from forensics.record.local_part import counts_here, local_part
from forensics.record.readback import read_scalars
from forensics.record.tensor_norms import combine, l2_norms

_DIGEST_CHUNK = 1 << 22
_NORMS = ("param_l2", "ema_l2_distance")
"""Columns that are norms of the state before the step."""


class ExtraColumns:
    """Fills the optional cells of every ``log_every``-th row.

    ``param_l2``, ``ema_l2_distance`` and ``param_digest`` are of the state before the step,
    ``update_l2`` is what the step changed (0 where it was skipped). ``tokens_per_s`` covers the
    steps since the last row that has it.

    Args:
        names: the columns wanted.
        parameters: (name, parameter) of the run.
        ema: an average with ``shadow`` values by name, or None.
        log_every: steps between filled rows.
        add_up: makes norms of all of those of this rank's parts, where parameters are spread over
            several; every rank must fill its rows alike then. There is no digest of those.
        counts: does what this rank holds of a parameter go into that?
    """

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[tuple[str, Tensor]],
        ema: Any = None,
        log_every: int = 1,
        add_up: Callable[[Sequence[float]], list[float]] | None = None,
        counts: Callable[[Tensor], bool] = counts_here,
    ) -> None:
        self._names, self._parameters = frozenset(names), list(parameters)
        self._add_up, self._counts = add_up, counts
        self._shadow: dict[str, Tensor] = getattr(ema, "shadow", {})
        self._log_every = log_every
        self._gathered: dict[str, Tensor] = {}
        self._digest: list[Tensor] = []
        self._before: list[Tensor] | None = None
        self._change: dict[str, Tensor] = {}
        self._tokens = 0
        self._tokens_since = time.perf_counter()

    def due(self, step: int) -> bool:
        """Does the row of this step get filled?"""
        return bool(self._names) and step % self._log_every == 0

    def follow(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Other parameters are trained from now on; what was gathered of the step is dropped."""
        self._parameters = list(parameters)
        self._gathered, self._digest, self._before, self._change = {}, [], None, {}

    def count_tokens(self, tokens: int) -> None:
        """Tokens (or samples) that the step under way has consumed."""
        self._tokens += tokens

    @torch.no_grad()
    def before_update(self) -> None:
        """Gather what is told of the state before the step; nothing waits for the device."""
        values = [local_part(parameter.detach()) for _, parameter in self._parameters]
        if "param_l2" in self._names:
            self._gathered["param_l2"] = _global_norm(self._counted(values))
        if "ema_l2_distance" in self._names and self._shadow:
            shadows = [local_part(self._shadow.get(n, p)) for n, p in self._parameters]
            pairs = zip(values, shadows, strict=True)
            gaps = [value.to(shadow.dtype) - shadow for value, shadow in pairs]
            self._gathered["ema_l2_distance"] = _global_norm(self._counted(gaps))
        if "param_digest" in self._names and self._add_up is None:
            self._digest = [_bit_sum(value) for value in values]
        if "update_l2" in self._names:
            self._before = [value.clone() for value in values]

    @torch.no_grad()
    def after_update(self) -> tuple[dict[str, Any], dict[str, float]]:
        """The cells of a filled row, and by parameter the L2 norm of its change where taken.

        One blocking read, and a second one for the digest.
        """
        if self._before is not None:
            now = [local_part(parameter.detach()) for _, parameter in self._parameters]
            changes = [a - b for a, b in zip(now, self._before, strict=True)]
            norms = l2_norms(self._counted(changes))
            self._change = dict(zip((name for name, _ in self._parameters), norms, strict=True))
        read = read_scalars([*self._gathered.values(), *self._change.values()])
        cells: dict[str, Any] = dict(zip(self._gathered, read, strict=False))
        updates = dict(zip(self._change, read[len(self._gathered) :], strict=True))
        if self._add_up is not None:
            cells, updates = self._of_all(cells, updates)
        if updates:
            cells["update_l2"] = combine(list(updates.values()))
        if self._digest:
            cells["param_digest"] = _digest_text(self._digest)
        self._gathered, self._digest, self._before, self._change = {}, [], None, {}
        return {**cells, **self._rates()}, updates

    def _counted(self, values: list[Tensor]) -> list[Tensor]:
        """One a parameter; what does not go into a sum over all ranks is 0."""
        if self._add_up is None:
            return values
        parameters = (parameter for _, parameter in self._parameters)
        pairs = zip(values, parameters, strict=True)
        return [value if self._counts(p) else value.new_zeros(1) for value, p in pairs]

    def _of_all(
        self, cells: dict[str, Any], updates: dict[str, float]
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Over all ranks, by as many numbers on each, whatever this one could gather."""
        assert self._add_up is not None
        names = [name for name, _ in self._parameters]
        own = [float(cells.get(name, 0.0)) for name in _NORMS]
        whole = self._add_up([*own, *(updates.get(name, 0.0) for name in names)])
        sums = dict(zip(_NORMS, whole, strict=False))
        changes = dict(zip(names, whole[len(_NORMS) :], strict=True))
        return {name: sums[name] for name in cells}, changes if updates else {}

    @property
    def gathered(self) -> bool:
        """Has ``before_update`` been called for the step under way?"""
        return bool(self._gathered or self._digest or self._before)

    def _rates(self) -> dict[str, float]:
        """What needs no tensor of the model."""
        rates: dict[str, float] = {}
        if "tokens_per_s" in self._names and self._tokens:
            now = time.perf_counter()
            rates["tokens_per_s"] = self._tokens / max(now - self._tokens_since, 1e-9)
            self._tokens, self._tokens_since = 0, now
        if "peak_memory_bytes" in self._names:
            rates["peak_memory_bytes"] = peak_memory(self._parameters[0][1].device)
        return rates


def peak_memory(device: torch.device) -> float:
    """Most memory held so far in bytes: the device's allocator, on a CPU the whole process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return float(torch.mps.driver_allocated_memory())
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def param_digest(parameters: Sequence[tuple[str, Tensor]]) -> str:
    """16 hexadecimal digits that change when any bit of any parameter does, or two swap places."""
    return _digest_text([_bit_sum(parameter.detach()) for _, parameter in parameters])


def param_sums(parameters: Sequence[tuple[str, Tensor]]) -> list[int]:
    """What the digest is made of: a sum for each parameter, modulo 2^64, as signed numbers."""
    sums = [_bit_sum(parameter.detach()) for _, parameter in parameters]
    return [int(total) for total in sums]


def digest_of_sums(sums: Sequence[int]) -> str:
    """The digest of such sums; they may lie outside 64 bits."""
    words = ((total + 2**63) % 2**64 - 2**63 for total in sums)
    return hashlib.blake2b(struct.pack(f"<{len(sums)}q", *words), digest_size=8).hexdigest()


def _global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Global L2 norm without a read, shape ()."""
    norms = l2_norms(tensors)
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0]) for norm in norms]))
    return total


def _bit_sum(value: Tensor) -> Tensor:
    """Sum of the bit patterns times odd numbers that grow with the place, modulo 2^64; int64.

    Integer sums do not depend on their order, so every device and thread count agrees. A flipped
    bit changes one term by a power of two times an odd number, which is never 0 modulo 2^64.
    """
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    real = torch.view_as_real(value) if value.is_complex() else value
    bits = real.contiguous().view(kinds[real.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for start in range(0, bits.numel(), _DIGEST_CHUNK):
        part = bits[start : start + _DIGEST_CHUNK].to(torch.int64)
        places = torch.arange(start, start + part.numel(), device=part.device)
        total += (part * (2 * places + 1)).sum()
    return total


def _digest_text(sums: Sequence[Tensor]) -> str:
    return digest_of_sums(torch.stack([total.to(sums[0].device) for total in sums]).tolist())
