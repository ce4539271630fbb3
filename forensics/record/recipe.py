"""Recipes: named trainings that can be rebuilt, recorded and replayed from ``run.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.config import Config

Batch = Any
"""One micro-batch: a tensor, or a tuple, list or dict of tensors with the sample in dimension 0."""


@dataclass
class Training:
    """Everything a training consists of, as ``build(config)`` returns it.

    Attributes:
        model: the module; its parameters are the run's.
        optimizers: at least one.
        loss: ``(model, micro_batch) → scalar Tensor``, the mean over the micro-batch's samples.
        schedulers: stepped once an optimizer step that was taken.
        scaler: a ``torch.amp.GradScaler`` of the recipe's own; None lets the reference loop make
            the one that the precision asks for.
        ema: an exponential moving average of the recipe's own; None lets the reference loop make
            one where ``config.ema_decay`` is set.
        extra: any further state with ``state_dict`` and ``load_state_dict``, by name.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor]
    schedulers: Sequence[Any] = ()
    scaler: Any = None
    ema: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class StepRecorder(Protocol):
    """What a recipe's own ``step`` may call; the recorder and its null twin both have it."""

    replaying: bool
    """True while a checkpoint is replayed: for faults that must not come back then."""

    def gradients(self) -> float:
        """Call between unscale and clip: takes the norms, returns the global L2 norm."""
        ...

    def end_step(self, loss: Tensor | float) -> None:
        """Call last: writes the row of this optimizer step."""
        ...


class Recipe:
    """Base of every recipe: subclass it, set ``defaults``, and register it with ``@recipe``.

    Attributes:
        name: set by ``@recipe``.
        defaults: what the recipe changes in the default ``Config``.
        config: the configuration of this recording; set before ``build``.
    """

    name: ClassVar[str] = ""
    defaults: ClassVar[Config] = Config()

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.defaults

    def build(self, config: Config) -> Training:
        """A fresh training; random numbers come from the global generators, already seeded."""
        raise NotImplementedError

    def batch(self, step: int) -> list[Batch]:
        """The micro-batches of one optimizer step; a pure function of the step and the config."""
        raise NotImplementedError

    def select(self, batch: Batch, indices: Sequence[int]) -> Batch:
        """Some samples of one micro-batch; by default dimension 0 of every tensor."""
        picked = list(indices)
        if isinstance(batch, Tensor):
            return batch[picked]
        if isinstance(batch, Mapping):
            return {key: self.select(value, picked) for key, value in batch.items()}
        if isinstance(batch, tuple | list):
            return type(batch)(self.select(value, picked) for value in batch)
        return batch

    step: ClassVar[Callable[..., Any] | None] = None
    """``(self, training, micro_batches, recorder) → loss``: only where the loop itself is special;
    None means the reference step."""
