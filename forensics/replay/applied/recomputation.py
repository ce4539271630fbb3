"""Activation checkpointing under watch: which regions are recomputed, and a step without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint as checkpointing
from torch import nn

from forensics.replay.tracing.call_site import Parts, call_site

_GENERATOR = "_checkpoint_without_reentrant_generator"
_FUNCTION = "CheckpointFunction"


class Recomputation:
    """Notes the functions that a step checkpoints; can run them without recomputing.

    Both kinds of checkpoint are reached by the names that torch's own ``checkpoint()`` looks up,
    so it does not matter how the user's code imported it.

    Args:
        parts: who is who.
        plain: call each function as it is, so that backward uses what forward made.
    """

    def __init__(self, parts: Parts, *, plain: bool = False) -> None:
        self.regions: list[tuple[str, str]] = []
        """Module and the user's line of each region, in the order of forward."""
        self._parts, self._plain = parts, plain

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context lasts."""
        own, function = vars(checkpointing)[_GENERATOR], vars(checkpointing)[_FUNCTION]
        setattr(checkpointing, _GENERATOR, self._generator(own))
        setattr(checkpointing, _FUNCTION, _Reentrant(function, self))
        try:
            yield
        finally:
            setattr(checkpointing, _GENERATOR, own)
            setattr(checkpointing, _FUNCTION, function)

    def note(self, function: Any) -> None:
        """One region begins."""
        site = call_site(self._parts, depth=3)
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
        module = self._parts.modules.get(id(owner), site.module)
        self.regions.append((module, site.source_line))

    @property
    def plain(self) -> bool:
        """Are functions called as they are?"""
        return self._plain

    def _generator(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(function: Any, *args: Any, **kwargs: Any) -> Any:
            self.note(function)
            return iter((None,)) if self._plain else own(function, *args, **kwargs)

        return wrapper


class _Reentrant:
    """Stands for ``CheckpointFunction``: only ``apply`` is called on it."""

    def __init__(self, own: Any, watch: Recomputation) -> None:
        self._own, self._watch = own, watch

    def apply(self, function: Any, preserve: bool, *args: Any) -> Any:
        """As ``CheckpointFunction.apply``."""
        self._watch.note(function)
        return function(*args) if self._watch.plain else self._own.apply(function, preserve, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)
