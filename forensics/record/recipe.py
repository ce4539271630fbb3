"""Recipes: named trainings that can be rebuilt, recorded and replayed from ``run.json``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar, overload

from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.config import Config
from forensics.record.listed_batches import refuse_one_batch_in_a_list

Batch = Any
"""One micro-batch: a tensor, or a tuple, list or dict of tensors with the sample in dimension 0."""

Batches = Callable[..., Any]
"""``step → micro-batches of that optimizer step``: a list of batches, or a lone batch. One that
takes ``rank`` and ``world_size``, too, is given them by name."""


@dataclass
class Training:
    """Everything a training consists of, as ``build(config)`` returns it.

    Attributes:
        model: the module; its parameters are the run's.
        optimizers: at least one; a lone one may be given without a list.
        loss: ``(model, micro_batch) → scalar Tensor``, the mean over the micro-batch's samples.
        schedulers: stepped once an optimizer step that was taken; a lone one without a list, too.
        scaler: a ``torch.amp.GradScaler`` of the recipe's own; None lets the reference loop make
            the one that the precision asks for.
        ema: an exponential moving average of the recipe's own; None lets the reference loop make
            one where ``config.ema_decay`` is set.
        extra: any further state with ``state_dict`` and ``load_state_dict``, by name.
        batch: the data, for a recipe that is a function; a recipe class has a method instead.
    """

    model: nn.Module
    optimizers: Sequence[Optimizer]
    loss: Callable[[nn.Module, Batch], Tensor]
    schedulers: Sequence[Any] = ()
    scaler: Any = None
    ema: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    batch: Batches | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizers, Optimizer):
            self.optimizers = [self.optimizers]
        if hasattr(self.schedulers, "step"):
            self.schedulers = [self.schedulers]


class StepRecorder(Protocol):
    """What a recipe's own ``step`` may call; the recorder and its null twin both have it."""

    replaying: bool
    """True while a checkpoint is replayed: for faults that must not come back then."""

    def gradients(
        self,
        loss: Tensor | float | None = None,
        *,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
    ) -> float:
        """Call between unscale and clip: takes the norms, returns the global L2 norm."""
        ...

    def add_loss(self, loss: Tensor | float) -> None:
        """Call with what goes backward of each micro-batch: the row has their sum."""
        ...

    def end_step(self, loss: Tensor | float | None = None) -> None:
        """Call last: writes the row of this optimizer step."""
        ...


class Recipe:
    """Base of every recipe: subclass it, set ``defaults``, and register it with ``@recipe``.

    Attributes:
        name: set by ``@recipe``.
        summary: one line for ``forensics record --list``; set by ``@recipe``.
        defaults: what the recipe changes in the default ``Config``. The keys of its ``model`` and
            ``data`` tables are the settings that a user may change there.
        config: the configuration of this recording; set before ``build``.
        rank: of this process, where several train together; ``batch`` gives each its own share.
        world_size: how many there are.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    defaults: ClassVar[Config] = Config()
    rank: int = 0
    world_size: int = 1

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.defaults

    def build(self, config: Config) -> Training:
        """A fresh training; random numbers come from the global generators, already seeded."""
        raise NotImplementedError(f"recipe {self.name} has no build()")

    def batch(self, step: int) -> Any:
        """The data of one optimizer step; a pure function of step, config and rank.

        A list holds micro-batches; anything else is a lone batch.
        """
        raise NotImplementedError(f"recipe {self.name} has no batch()")

    def micro_batches(self, step: int) -> list[Batch]:
        """What ``batch`` gives for a step, as the loop takes it: a lone batch is one of one.

        Raises:
            UsageError: it is a list of what can only be the parts of one batch.
        """
        batches = self.batch(step)
        if isinstance(batches, Iterator):  # written with yield
            return list(batches)
        if not isinstance(batches, list):
            return [batches]
        if self.step is None:  # a loop of its own may take them as it likes
            refuse_one_batch_in_a_list(batches)
        return batches

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


class FunctionRecipe(Recipe):
    """A recipe written as one function from the config to a ``Training`` with its ``batch``."""

    function: ClassVar[Callable[[Config], Training]]

    def build(self, config: Config) -> Training:
        """What the function returns; TypeError where it is no ``Training`` with a ``batch``."""
        training = type(self).function(config)
        if not isinstance(training, Training) or training.batch is None:
            raise TypeError(f"recipe {self.name} must return a Training with its batch=…")
        self._batches: Batches = training.batch
        self._asks_rank = {"rank", "world_size"} <= parameters_of(training.batch)
        return training

    def batch(self, step: int) -> Any:
        """The function's data; where its ``batch`` takes ``rank`` and ``world_size``, for them."""
        share = {"rank": self.rank, "world_size": self.world_size} if self._asks_rank else {}
        return self._batches(step, **share)


def parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's parameters; none where they cannot be known."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_R = TypeVar("_R", bound=type[Recipe])


class _Register(Protocol):
    """What ``recipe(…)`` returns: takes a class and gives it back, or makes one of a function."""

    @overload
    def __call__(self, target: _R) -> _R: ...
    @overload
    def __call__(self, target: Callable[[Config], Training]) -> type[FunctionRecipe]: ...


def recipe(name: str, summary: str = "", *, defaults: Config | None = None) -> _Register:
    """Register the ``Recipe`` class, or the function ``config → Training``, below.

    Args:
        name: what ``forensics record NAME`` is given; letters, digits, ``.``, ``_`` and ``-``.
        summary: one line for ``forensics record --list``.
        defaults: replaces the class's ``defaults``; the only way to give a function some.

    Raises:
        ValueError: a name with other characters (it becomes a folder's name).
    """
    if not _NAME.match(name):
        raise ValueError(f"{name!r} cannot name a recipe: letters, digits, '.', '_' and '-' can")

    def register(target: Any) -> Any:
        made: type[Recipe] = target if isinstance(target, type) else _from_function(target)
        made.name, made.summary = name, summary
        made.defaults = made.defaults if defaults is None else defaults
        return made

    return register


def _from_function(function: Callable[[Config], Training]) -> type[FunctionRecipe]:
    attributes = {
        "function": staticmethod(function),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
    }
    return type(function.__name__, (FunctionRecipe,), attributes)
