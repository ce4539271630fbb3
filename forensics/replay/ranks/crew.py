"""Rank 0's side of a replay by many ranks: what it has the others do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from forensics.errors import NotReplayableError
from forensics.record.ranks.share import batch_of
from forensics.record.ranks.world import World
from forensics.record.recipe import Batch, Recipe
from forensics.replay.ranks.exchange import Exchange, RankLostError
from forensics.replay.ranks.messages import (
    Build,
    End,
    MakeBatch,
    Refusal,
    Report,
    TrainShare,
    as_error,
)
from forensics.replay.rerun.remote_batch import RemoteBatch


class Crew:
    """The other ranks of a replay, led by this one.

    Args:
        world: rank 0 among all.
        recipe: that the user named, or None.
        device: the same.
    """

    def __init__(self, world: World, recipe: str | None, device: str | None) -> None:
        self.size = world.size
        self.exchange = Exchange(world)
        self._build = Build(run="", recipe=recipe, device=device)

    def of(self, run: Path) -> None:
        """The run directory, which every rank can read."""
        self._build = replace(self._build, run=str(run.absolute()))

    def build(self) -> None:
        """Have every rank build the training anew.

        Raises:
            NotReplayableError: one of them cannot.
        """
        self.exchange.say(self._build)
        answers = self.exchange.hear("")
        self.exchange.talking = False
        for rank, why in enumerate(answers):
            if why:
                raise NotReplayableError(why, where=f"rank {rank}")

    def batches(self, recipe: Recipe, step: int) -> list[list[Any]]:
        """The micro-batches of every rank; of the others only how large they are.

        Raises:
            Exception: whatever a rank's ``batch`` raised.
        """
        self.exchange.say(MakeBatch(step=step))
        own: list[Batch] = []
        failure: BaseException | None = None
        try:
            own = batch_of(recipe, step, 0, self.size)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the others must be heard, too
            failure = error
        heard = self.exchange.hear(())
        self.exchange.talking = False
        if failure is not None:
            raise failure
        for answer in heard:
            if isinstance(answer, Refusal):
                raise as_error(answer)
        others = [[RemoteBatch(i, n) for i, n in enumerate(sizes)] for sizes in heard[1:]]
        return [own, *others]

    def train(self, order: TrainShare, model: nn.Module) -> None:
        """Have the others begin with their share, from this model's parameters and buffers."""
        self.exchange.say(order)
        self.exchange.hand_out(tensors_of(model))

    def report(self, own: Report) -> list[Report]:
        """What the share of every rank came to."""
        return self.exchange.share(own)

    def traces(self) -> list[Any]:
        """What the traces of the others show, in the order of their ranks."""
        return self.exchange.hear(None)[1:]

    def trained(self) -> None:
        """The step's last collective is over."""
        self.exchange.talking = False

    def end(self, message: End) -> None:
        """Let the others go; where they are gone already, they know."""
        if not self.exchange.lost:
            with suppress(RankLostError):
                self.exchange.say(message)


def tensors_of(model: nn.Module) -> list[Tensor]:
    """What every rank must have alike before a step, in one order."""
    return [*model.parameters(), *model.buffers()]


def dtypes_of(model: nn.Module) -> Sequence[Any]:
    """The types of these."""
    return tuple(tensor.dtype for tensor in tensors_of(model))
