"""A recorder that records nothing, so that a loop needs no ``if`` around its recorder."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self


class NullRecorder:
    """Has the methods of ``Recorder``; none of them touches a tensor, a file or the device."""

    replaying = False

    def resume(self) -> int:
        """Nothing to go on with: step 0."""
        return 0

    def gradients(self, loss: Any = None, *, optimizers: Any = None) -> float:
        """Measures nothing: NaN."""
        return math.nan

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
