"""What the ranks of a replay tell each other; plain values that pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forensics.replay.tracing.raised import Raised

Picks = tuple[tuple[int, tuple[int, ...] | None], ...]
"""Which of a rank's micro-batches are used, by place, and which samples of each; None for all."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build the training anew, as it was before step 0.

    Attributes:
        run: path of the run directory.
        recipe: that the user named, or None.
        device: that the user named, or None.
    """

    run: str
    recipe: str | None
    device: str | None


@dataclass(frozen=True, kw_only=True)
class MakeBatch:
    """Make the micro-batches of a step, and say how many samples each holds."""

    step: int


@dataclass(frozen=True, kw_only=True)
class TrainShare:
    """Compute your own share of a step.

    Attributes:
        step: its index.
        picks: by rank, what of its batch is used.
        precision: of the forward.
        scale: the loss scale; None where the loss is not scaled.
        widened: what the data are turned into, or None.
        dtypes: of parameters and buffers, in the model's order.
        modes: of the modules, in the model's order: in training or not.
        streams: the random numbers of every rank but 0, by rank.
        traced: trace the share.
    """

    step: int
    picks: Mapping[int, Picks]
    precision: str
    scale: float | None
    widened: torch.dtype | None
    dtypes: Sequence[torch.dtype]
    modes: Sequence[bool]
    streams: Sequence[Any]
    traced: bool


@dataclass(frozen=True, kw_only=True)
class End:
    """The replay is over.

    Attributes:
        result: what rank 0 has found; None where it failed.
        failure: its error: type, what, where and hint.
    """

    result: Any = None
    failure: tuple[Any, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An exception of another rank.

    Attributes:
        kind: its type's name.
        told: type, text and place in one line.
        raised: the same in detail, where the share was traced.
    """

    kind: str
    told: str
    raised: Raised | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a rank's share of a step came to.

    Attributes:
        loss: mean over its micro-batches; None where it had none, or raised.
        scale: the loss scale that it used.
        bad_loss: the last backward was not run.
        bad_gradient: an element of its own gradients is not finite.
        gradients: which parameters got one: 0 none, 1 a dense one, 2 a sparse one.
        stream: its random numbers after the share.
        refusal: what it raised, or None.
    """

    loss: float | None = None
    scale: float = 1.0
    bad_loss: bool = False
    bad_gradient: bool = False
    gradients: bytes = b""
    stream: Any = None
    refusal: Refusal | None = None


class RankRaisedError(Exception):
    """Another rank raised in its share; ``raise_as`` gives it the name of what was raised."""

    def __init__(self, refusal: Refusal) -> None:
        self.told_elsewhere = refusal.told
        self.raised_elsewhere = refusal.raised
        super().__init__(refusal.told.partition(": ")[2])


def as_error(refusal: Refusal) -> RankRaisedError:
    """The exception of another rank, under the name of its own type."""
    kind: type[RankRaisedError] = type(refusal.kind, (RankRaisedError,), {})
    return kind(refusal)
