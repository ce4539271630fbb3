"""A saved state of any format, as everything after it sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateValue:
    """One value of a state.

    Attributes:
        name: dotted path in the state, such as ``optimizer.state.3.exp_avg``.
        kind: ``param``, ``buffer``, ``optimizer``, ``ema``, ``scaler``, ``lr`` or ``other``; also
            ``rng`` and ``config``, which the training does not compute with.
        parameter: the parameter it is or belongs to; empty where it is none, or none can be told.
        value: a tensor (memory-mapped, read-only, perhaps on ``meta``) or a float.
    """

    name: str
    kind: str
    parameter: str
    value: Tensor | float


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A state that was opened: its tensors are read when they are looked at, not before.

    Attributes:
        path: the file or folder.
        format: in words, such as ``torch`` or ``safetensors, 3 shards``.
        step: the step it stands before, as its name or its contents say; None for neither.
        size: bytes of its files.
        values: goes through the state once; can be called again. It raises InputError where a
            shard turns out unreadable.
        missing: what a resume needs and the state has not, a clause each.
        notes: what else the reader must know, a sentence each.
    """

    path: Path
    format: str
    step: int | None
    size: int
    values: Callable[[], Iterator[StateValue]]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
