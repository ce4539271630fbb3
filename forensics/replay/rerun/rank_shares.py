"""The micro-batches of all ranks of a step, and which rank went bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forensics.diagnose.bisection_result import EMULATED, REAL
from forensics.record.ranks.share import batch_of
from forensics.record.recipe import Batch, Recipe, Training
from forensics.replay.ranks.crew import Crew
from forensics.replay.rerun.changes import batch_size
from forensics.replay.rerun.emulated_ranks import EmulatedRanks, RankStreams
from forensics.replay.rerun.plain_build import check_plain

EXTRA = "emulated ranks"
"""Under which a training keeps the ranks' random numbers while it is replayed."""


@dataclass
class RankShares:
    """The ranks of a run that one process replays; with one rank only, nothing is different.

    Attributes:
        size: how many ranks trained.
        crew: the other ranks, where each replays its own share; None where this process does all.
        bad: those whose own loss or gradient was bad in the last step, where there are several.
        samples: how many each rank had in the last step.
        notes: what the saved states lack, a sentence each.
    """

    size: int
    crew: Crew | None = None
    bad: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    _ranks: Sequence[int] = ()

    def prepare(self, training: Training, recipe: Recipe, seed: int) -> None:
        """A training that was just built gets the random numbers of every rank.

        Raises:
            NotReplayableError: its model is not a plain one.
        """
        if self.size > 1:
            check_plain(training.model)
            recipe.world_size = self.size
            training.extra = {**training.extra, EXTRA: RankStreams(seed, self.size)}
        if self.crew is not None:
            self.crew.build()

    def load(self, training: Training, state: Mapping[str, Any], step: int) -> None:
        """The random numbers of the saved state of a step; what it lacks is noted."""
        streams = streams_of(training)
        if streams is not None and not streams.take_over(state):
            what = f"the saved state of step {step:,} lacks the random numbers of the other ranks"
            self.notes = tuple(dict.fromkeys((*self.notes, what)))

    def batch(self, recipe: Recipe, step: int) -> list[Batch]:
        """The micro-batches of a step, those of rank 0 first."""
        if self.size == 1:
            return recipe.micro_batches(step)
        if self.crew is not None:
            shares = self.crew.batches(recipe, step)
        else:
            shares = [batch_of(recipe, step, rank, self.size) for rank in range(self.size)]
        self._ranks = [rank for rank, share in enumerate(shares) for _ in share]
        self.samples = tuple(sum(map(batch_size, share)) for share in shares)
        return [batch for share in shares for batch in share]

    def begin(
        self, state: Any, step: int, places: Sequence[int], widened: torch.dtype | None
    ) -> None:
        """Tell the step that is about to be run whose the micro-batches are.

        Args:
            state: of the loop.
            step: its index.
            places: which of the step's micro-batches are left.
            widened: what the data are turned into, or None.
        """
        if isinstance(state, EmulatedRanks):
            state.begin(step, [self._ranks[place] for place in places], widened)

    def end(self, state: Any) -> tuple[str, ...]:
        """What was bad in the step and is not in rank 0's row."""
        if not isinstance(state, EmulatedRanks):
            return ()
        self.bad = state.bad_ranks
        return ("loss",) * state.any_bad_loss

    def told(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a result for a person: the rank, and its samples by its own count.

        Args:
            fields: as they were found, samples counted over all ranks in a row.
        """
        told = dict(fields)
        if self.size > 1:
            told["reduction"] = EMULATED if self.crew is None else REAL
        bad = told.get("bad_ranks", ())
        if self.size == 1 or not bad:
            told.pop("bad_ranks", None)
            return told
        told["rank"] = bad[0]
        own = self._counted(told.get("samples", ()), bad)
        if own is not None:
            told.update(samples=own, batch_size=self.samples[bad[0]])
        else:
            told["samples_note"] = "counted over the batches of all ranks in a row"
        return told

    def _counted(self, samples: Sequence[int], bad: Sequence[int]) -> tuple[int, ...] | None:
        """Samples by the bad ranks' own count; None where it is not the same of each of them.

        Ranks that share a batch, as under tensor parallelism, have the same ones.
        """
        of: dict[int, list[int]] = {rank: [] for rank in bad}
        for rank, size in enumerate(self.samples):
            start = sum(self.samples[:rank])
            if held := [index - start for index in samples if start <= index < start + size]:
                of[rank] = held
        alike = {(tuple(held), self.samples[rank]) for rank, held in of.items()}
        return next(iter(alike))[0] if len(alike) == 1 and of.keys() == set(bad) else None


def streams_of(training: Training) -> RankStreams | None:
    """The random numbers of the ranks that a training stands for; None for one rank."""
    found = training.extra.get(EXTRA)
    return found if isinstance(found, RankStreams) else None
