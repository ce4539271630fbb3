"""A recorder that records nothing, so that a loop needs no ``if`` around its recorder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from torch.optim import Optimizer

from forensics.record.clipping import torchs_norm


class NullRecorder:
    """Has the methods of ``Recorder``; none of them touches a file.

    Args:
        optimizers: those of the loop, where it clips by what ``gradients()`` returns. Without them
            no method touches a tensor or the device either.
    """

    replaying = False

    def __init__(self, optimizers: Optimizer | Sequence[Optimizer] | None = None) -> None:
        self._optimizers = optimizers

    def resume(self) -> int:
        """Nothing to go on with: step 0."""
        return 0

    def gradients(self, loss: Any = None, *, optimizers: Any = None) -> float:
        """The global L2 norm as torch takes it, one blocking read; NaN where no optimizer is known.

        A clip by NaN makes every gradient NaN: a loop that clips by this hands its optimizers over.
        """
        chosen = self._optimizers if optimizers is None else optimizers
        return math.nan if chosen is None else torchs_norm(chosen)

    def add_loss(self, loss: Any) -> None:
        """Nothing."""

    def end_step(self, loss: Any = None) -> None:
        """Nothing."""

    def observe(self, grads: Any, *, scaled: bool = False) -> None:
        """Nothing."""

    def write(self, log: Any) -> None:
        """Nothing."""

    def note(self, **cells: Any) -> None:
        """Nothing."""

    def saved(self, path: Any, step: int | None = None) -> None:
        """Nothing."""

    def reducing(self) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def count_tokens(self, tokens: int) -> None:
        """Nothing."""

    def close(self, ended: Any = None) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
