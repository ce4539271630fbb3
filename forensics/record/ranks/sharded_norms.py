"""Gradient norms of parameters that are spread over several ranks: one sum over all of them.

Each rank measures what it holds. The squares go into one all-reduce, whose length depends on the
parameters alone: a rank that lacks a gradient, or could not measure, still takes part. What is not
finite is reduced as a flag: a backend may lose a NaN on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from forensics.record.clipping import GradNorms
from forensics.record.local_part import counts_here, local_part, partial_dimensions
from forensics.record.ranks.partial_gradients import PartialGradients
from forensics.record.tensor_norms import closer_look, combine, l2_norms

Named = Sequence[tuple[str, Tensor]]
Grads = Sequence[Tensor | None]
Counts = Callable[[Tensor, Tensor], bool]

_SQUARE, _NAN, _INF, _PRESENT, _PARTIAL, _FIELDS = range(6)
"""Of each parameter, added up over the ranks: the square of its norm (finite parts that count), how
many ranks' parts are NaN, Inf, there at all, and the mesh dimensions they are partial in."""


class ShardedNorms:
    """Measures the gradients of a model of which no rank holds all; every rank must call it alike.

    Gradients that still are partial sums are added up for the measurement; they themselves stay as
    they are.

    Args:
        parameters: (name, parameter) of the run; alike on all ranks.
        waiting: told before this rank waits for the others.
        counts: (parameter, gradient) → does what this rank holds go into a sum over all?
    """

    def __init__(
        self,
        parameters: Named,
        waiting: Callable[[], None],
        counts: Counts = lambda _, grad: counts_here(grad),
    ) -> None:
        self._waiting, self._counts = waiting, counts
        self._total: float | None = None
        self._all_failed = False
        self.follow(parameters)

    def follow(self, parameters: Named) -> None:
        """Other parameters are trained from now on, on every rank."""
        self._parameters = list(parameters)
        self._device = local_part(self._parameters[0][1]).device
        self._partial = PartialGradients([p for _, p in self._parameters])

    def begin(self) -> None:
        """A measurement is about to begin; it may fail before it comes to this."""
        self._total, self._all_failed = None, False

    @torch.no_grad()
    def after_failure(self, parameters: Sequence[Tensor]) -> float:
        """The global norm where measuring has failed on this rank, since ``begin``.

        Where it failed before the sum over the ranks, this rank joins in it and says so: then all
        have failed, and all are here. Where it failed after it, the others are elsewhere, and the
        sum is known.

        Args:
            parameters: whose gradients are meant.

        Returns:
            What torch makes of it, alike on all ranks; NaN where it makes nothing of it.
        """
        if self._total is not None:
            return self._total
        if not self._all_failed:
            self._partial.made_whole([None] * len(self._parameters))
            row = torch.zeros(len(self._parameters) * _FIELDS + 1, dtype=torch.float64)
            row[-1] = 1.0
            dist.all_reduce(row.to(self._device))
        try:
            norm = self._norm_of_own(parameters)
        except Exception:  # noqa: BLE001 - the others wait for this rank, whatever it is
            norm = math.nan
        sums = torch.tensor([norm * norm], dtype=torch.float64).nan_to_num(posinf=0.0)
        flags = torch.tensor([math.isnan(norm), math.isinf(norm)], dtype=torch.float64)
        sums = torch.cat([sums, flags]).to(self._device)
        dist.all_reduce(sums)
        return _norm(sums.tolist())

    @torch.no_grad()
    def __call__(self, members: Named, alongside: Sequence[Tensor] = ()) -> GradNorms:
        """As ``grad_norms``, with the same norms and counts on every rank.

        Args:
            members: those of the parameters whose gradients are meant.
            alongside: one-element tensors of this rank to read in the same go.

        Raises:
            RuntimeError: a rank could not measure. All raise then, that one its own error.
        """
        chosen = {id(p) for _, p in members}
        grads = [p.grad if id(p) in chosen else None for _, p in self._parameters]
        self._waiting()
        parts = self._partial.made_whole(grads)
        sums, own, further = self._summed(grads, parts, alongside)
        table = [sums[i : i + _FIELDS] for i in range(0, len(sums) - 1, _FIELDS)]
        if self._partial.learn({i: _mask(row) for i, row in enumerate(table)}):
            return self(members, alongside)  # on all ranks alike, and once in a run
        return self._told(grads, parts, table, own, further)

    def _summed(
        self, grads: Grads, parts: Grads, alongside: Sequence[Tensor]
    ) -> tuple[list[float], list[float], list[float]]:
        """The sums over all ranks, this rank's own norms, and what was to be read: one read."""
        count = len(self._parameters)
        error: Exception | None = None
        try:
            rows, own = self._measured(grads, parts)
        except Exception as failed:  # noqa: BLE001 - the others wait for this rank, whatever it is
            error = failed
            rows, own = torch.zeros(count * _FIELDS), torch.zeros(count)
        ends = rows.new_tensor([float(error is not None)])
        sums = torch.cat([rows, ends]).to(self._device, torch.float64)
        dist.all_reduce(sums)
        scalars = [local_part(scalar).reshape(1).to(sums) for scalar in alongside]
        read = torch.cat([sums, own.to(sums), *scalars]).tolist()
        ends_at = len(sums)
        self._all_failed = bool(read[ends_at - 1])
        if self._all_failed:
            raise error or RuntimeError("another rank could not measure its gradients")
        return read[:ends_at], read[ends_at : ends_at + count], read[ends_at + count :]

    def _measured(self, grads: Grads, parts: Grads) -> tuple[Tensor, Tensor]:
        """This rank's row of numbers, and the norms of its own parts, on the device."""
        rows = torch.zeros(len(grads), _FIELDS, dtype=torch.float64, device=self._device)
        own = torch.zeros(len(grads), dtype=torch.float64, device=self._device)
        held = [(i, grad, part) for i, (grad, part) in _pairs(grads, parts)]
        if held:
            places = torch.tensor([i for i, _, _ in held], device=self._device)
            norms = _on_device(l2_norms([part for _, _, part in held]), self._device)
            counted = [self._counts(self._parameters[i][1], grad) for i, grad, _ in held]
            counts = torch.tensor(counted, device=self._device)
            square = torch.where(norms.isfinite() & counts, norms.square(), 0.0)
            there = torch.ones_like(norms)
            partial = [partial_dimensions(grad) for _, grad, _ in held]
            bits = torch.tensor(partial, device=self._device, dtype=torch.float64)
            fields = [square, norms.isnan().to(norms), norms.isinf().to(norms), there, bits]
            rows[places] = torch.stack(fields, dim=1)
            own[places] = norms
            if any(partial):
                own[places] = _on_device(l2_norms([grad for _, grad, _ in held]), self._device)
        return rows.flatten(), own

    def _told(
        self,
        grads: Grads,
        parts: Grads,
        table: Sequence[Sequence[float]],
        own: Sequence[float],
        further: Sequence[float],
    ) -> GradNorms:
        """What the sums say."""
        l2 = [_norm(row) for row in table]
        self._total = combine(l2)
        bad = [i for i, norm in enumerate(l2) if not math.isfinite(norm)]
        counts, overflowed = dict.fromkeys(range(len(l2)), 0), False
        for i, (count, norm) in zip(bad, self._closer(grads, parts, bad), strict=True):
            counts[i] = count
            if not count:
                l2[i], overflowed = norm, True
        there = [i for i, row in enumerate(table) if row[_PRESENT]]
        return GradNorms(
            names=tuple(self._parameters[i][0] for i in there),
            grads=tuple(_part_of(grads[i], self._parameters[i][1]) for i in there),
            l2=tuple(l2[i] for i in there),
            nonfinite={self._parameters[i][0]: counts[i] for i in there if counts[i]},
            total=combine([l2[i] for i in there]),
            overflowed=overflowed,
            alongside=tuple(further),
            own=tuple(own[i] for i in there),
        )

    def _norm_of_own(self, parameters: Sequence[Tensor]) -> float:
        """Torch's norm of what this rank adds to a sum; NaN where some must be added up before."""
        held = [(p, p.grad) for p in parameters if p.grad is not None]
        if any(partial_dimensions(grad) for _, grad in held):
            return math.nan
        counted = [local_part(grad) for p, grad in held if self._counts(p, grad)]
        return float(torch.nn.utils.get_total_norm(counted))

    def _closer(self, grads: Grads, parts: Grads, bad: Sequence[int]) -> list[tuple[int, float]]:
        """Of bad ones the non-finite elements and the norm in float64; a second all-reduce."""
        if not bad:
            return []
        rows = torch.zeros(len(bad), 3, dtype=torch.float64, device=self._device)
        for row, i in zip(rows, bad, strict=True):
            grad, part = grads[i], parts[i]
            if grad is None or part is None or not part.numel():
                continue
            count, norm = closer_look(part)
            row[1] = count
            if self._counts(self._parameters[i][1], grad):
                row[0] = count
                row[2] = torch.where(norm.isfinite(), norm.square(), 0.0)
        dist.all_reduce(rows)
        return [(int(ours or any_), math.sqrt(square)) for ours, any_, square in rows.tolist()]


def _pairs(grads: Grads, parts: Grads) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """The gradients that are there, each with what this rank holds of it."""
    both = enumerate(zip(grads, parts, strict=True))
    return [(i, (g, p)) for i, (g, p) in both if g is not None and p is not None]


def _on_device(norms: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack([norm.to(device, torch.float64) for norm in norms])


def _norm(row: Sequence[float]) -> float:
    if row[_NAN]:
        return math.nan
    return math.inf if row[_INF] else math.sqrt(row[_SQUARE])


def _mask(row: Sequence[float]) -> int:
    """The dimensions in which the gradient is partial, as the ranks that have one say."""
    return round(row[_PARTIAL] / row[_PRESENT]) if row[_PRESENT] else 0


def _part_of(grad: Tensor | None, parameter: Tensor) -> Tensor:
    return local_part(parameter).new_zeros(0) if grad is None else local_part(grad)
