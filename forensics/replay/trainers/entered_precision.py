"""Another precision for an autocast that was made long before it is entered.

Accelerate makes one autocast when it prepares the model, and enters it in every forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.amp.autocast_mode import autocast

from forensics.record.precision import AUTOCAST_DTYPE


@contextmanager
def entered_as(precision: str | None) -> Iterator[None]:
    """Every autocast that is entered meanwhile has this precision; ``fp32``, ``fp64``: none.

    Args:
        precision: None changes nothing.
    """
    if precision is None:
        yield
        return
    dtype = AUTOCAST_DTYPE.get(precision)
    enter, leave = autocast.__enter__, autocast.__exit__
    kept: list[tuple[bool, Any]] = []

    def entered(self: Any) -> Any:
        kept.append((self._enabled, self.fast_dtype))
        self._enabled = self._enabled and dtype is not None
        self.fast_dtype = dtype or self.fast_dtype
        return enter(self)  # type: ignore[no-untyped-call]

    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            self._enabled, self.fast_dtype = kept.pop()

    autocast.__enter__, autocast.__exit__ = entered, left  # type: ignore[method-assign]
    try:
        yield
    finally:
        autocast.__enter__, autocast.__exit__ = enter, leave  # type: ignore[method-assign]
