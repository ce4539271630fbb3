"""A loop that has no optimizer: it changes its parameters itself, as ``p -= lr * p.grad``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from forensics.errors import UsageError


class ByHand(Optimizer):
    """Takes the place of the optimizer that the loop lacks: it holds what is trained.

    Its ``step`` changes nothing. Called after the loop's own update it calls the hooks of the
    recording, which see that there was one, and the gradients; hooks on all optimizers of a process
    hear nothing of it. It has no learning rate: the loop may note it (``note(lr=…)``).

    Args:
        model: whose parameters are trained, all that require a gradient.

    Raises:
        UsageError: there is none.
    """

    def __init__(self, model: nn.Module) -> None:
        held = [p for p in model.parameters() if p.requires_grad]
        if not held:
            raise UsageError(
                "has no parameter that requires a gradient",
                where="model",
                hint="pass what is trained",
            )
        super().__init__(held, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Changes nothing."""
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (self,), {})

    step.hooked = True  # type: ignore[attr-defined]  # torch's word for: do not wrap it


def trained_by(
    model: nn.Module, optimizers: Optimizer | Sequence[Optimizer] | None
) -> tuple[list[Optimizer], ByHand | None]:
    """The optimizers of a loop; where it says that it has none, what takes their place, twice.

    An empty list is not ``None``: it is left to be refused, as one that should have held some.
    """
    if optimizers is None:
        by_hand = ByHand(model)
        return [by_hand], by_hand
    return ([optimizers] if hasattr(optimizers, "step") else list(optimizers)), None  # type: ignore[list-item]
