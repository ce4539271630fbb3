"""A training of many ranks, replayed by one process: rank by rank, and the reduction made by hand.

DistributedDataParallel's step is that of one process on each rank's own batch, with three things
shared: gradients are divided by the number of ranks and added up, buffers begin each step as rank
0's, and no rank goes on to its last backward where the loss of one is bad. Everything else (random
numbers, losses) is a rank's own. With two ranks the sum has one order, so the bits are the same;
with more the reduction may add up in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from forensics.record.ranks.rank_rng import rng_states
from forensics.record.ranks.replica import rank_seed
from forensics.record.recipe import Batch
from forensics.record.rng import restore_rng, rng_state, seed_everything
from forensics.record.train_step import AmpTrainState
from forensics.replay.ranks.share import any_bad_gradient
from forensics.replay.tracing.other_ranks import reduced
from forensics.replay.tracing.step_trace import running_tracer
from forensics.runlog.schema import SKIP_NONFINITE_LOSS


class RankStreams:
    """The random numbers of every rank but 0, whose are the process's own.

    Args:
        seed: of the run.
        size: ranks in all.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.size = size
        self._states: list[Any] = [None]
        own = rng_state()
        for rank in range(1, size):
            seed_everything(rank_seed(seed, rank))
            self._states.append(rng_state())
        restore_rng(own)

    def begin(self, rank: int) -> None:
        """From here on the random numbers are this rank's."""
        if rank:
            self._states[0] = self._states[0] or rng_state()
            restore_rng(self._states[rank])

    def end(self, rank: int) -> None:
        """The rank has drawn what it needs; they are rank 0's again."""
        if rank:
            self._states[rank] = rng_state()
            restore_rng(self._states[0])
            self._states[0] = None

    def take_over(self, checkpoint: Mapping[str, Any]) -> bool:
        """The ranks' states in a saved one; False where it has not those of all of them."""
        saved = rng_states(checkpoint)
        if len(saved) != self.size:
            return False
        self._states = [None, *saved[1:]]
        return True

    def all(self) -> list[Any]:
        """The states of every rank but 0, by rank."""
        return self._states[1:]

    def put(self, states: Iterable[Any]) -> None:
        """The states that the other ranks have come to; None leaves a rank's as it is."""
        for rank, state in enumerate(states, start=1):
            self._states[rank] = self._states[rank] if state is None else state

    def state_dict(self) -> dict[str, Any]:
        """For a copy of the whole state."""
        return {"states": list(self._states)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Back to a copy."""
        self._states = list(state["states"])


class EmulatedRanks(AmpTrainState):
    """The reference step of all ranks, in one process.

    Attributes:
        streams: the ranks' random numbers; set before the first step.
        ranks: whose each micro-batch of the step is, ascending; set before each step.
        widened: what the step's data are turned into, or None; set before each step.
        losses: of each rank in the last step.
        bad_gradients: ranks with a non-finite gradient of their own in the last step.
        raised: ranks that raised in their own part of it.
    """

    streams: RankStreams
    ranks: Sequence[int] = ()
    widened: torch.dtype | None = None
    losses: Mapping[int, float] = {}
    bad_gradients: tuple[int, ...] = ()
    raised: tuple[int, ...] = ()

    @property
    def any_bad_loss(self) -> bool:
        """Was the loss of any rank not finite?"""
        return not all(map(math.isfinite, self.losses.values()))

    @property
    def bad_ranks(self) -> tuple[int, ...]:
        """Ranks whose own loss or gradient was bad, or who raised, ascending."""
        bad = {rank for rank, loss in self.losses.items() if not math.isfinite(loss)}
        return tuple(sorted(bad | set(self.bad_gradients) | set(self.raised)))

    def begin(self, step: int, ranks: Sequence[int], widened: torch.dtype | None) -> None:
        """A step is about to be run: which, whose its micro-batches are, and in which type."""
        self.step_index = step  # one that raised before was not counted
        self.ranks, self.widened = ranks, widened
        self.losses, self.bad_gradients, self.raised = {}, (), ()

    def _accumulate(self, micro_batches: Sequence[Batch]) -> tuple[float, float, str]:
        """Every rank's forward and backward, and the mean of their gradients.

        The loss is that of the first rank there is, as in rank 0's log. A rank that raises keeps
        none of the others from their own part: it may be the only one, or one of all.
        """
        shares: dict[int, list[Batch]] = {}
        for rank, batch in zip(self.ranks, micro_batches, strict=True):
            shares.setdefault(rank, []).append(batch)
        parameters = [p for _, p in self.parameters]
        buffers = list(self.model.buffers())
        begin, kept = _copies(buffers), None
        total: list[Tensor | None] = [None] * len(parameters)
        losses: dict[int, float] = {}
        errors: dict[int, Exception] = {}
        bad: list[int] = []
        scale, reason = math.nan, ""
        for rank, batches in shares.items():
            if kept is not None:
                _fill(buffers, begin)
            self.streams.begin(rank)
            try:
                losses[rank], scale, why = super()._accumulate(batches)
                reason = reason or (f"{SKIP_NONFINITE_LOSS}:rank {rank}" if why else "")
            except Exception as error:  # noqa: BLE001 - whatever a loop raises is evidence
                errors[rank] = error
            finally:
                self.streams.end(rank)
            with _disable_current_modes():
                kept = _copies(buffers) if kept is None else kept
                bad += [rank] * (rank not in errors and any_bad_gradient(parameters))
                total = _added(total, parameters, self.streams.size)
        _fill(buffers, kept or begin)
        self.losses, self.bad_gradients, self.raised = losses, tuple(bad), tuple(errors)
        if errors:
            raise next(iter(errors.values()))
        self._put(parameters, [None] * len(total) if reason else total)
        return next(iter(losses.values())), scale, reason

    def _put(self, parameters: Sequence[Tensor], total: Sequence[Tensor | None]) -> None:
        """The reduced gradients; a trace goes on from them."""
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        tracer = running_tracer()
        if tracer is not None:
            with _disable_current_modes():
                reduced(tracer, parameters, total)


@torch.no_grad()
def _added(
    total: Sequence[Tensor | None], parameters: Sequence[Tensor], size: int
) -> list[Tensor | None]:
    """The sum so far and a rank's share; its gradients are taken away."""
    added: list[Tensor | None] = []
    for so_far, parameter in zip(total, parameters, strict=True):
        own, parameter.grad = parameter.grad, None
        if own is None:
            added.append(so_far)
            continue
        own.div_(size)
        added.append(own if so_far is None else so_far.add_(own))
    return added


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _fill(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
