"""The leaves of a saved state: its tensors and floats, each by its dotted path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forensics.errors import InputError
from forensics.replay.saved_states.inert_pickle import Built
from forensics.replay.saved_states.stored_tensor import StoredTensor
from forensics.replay.saved_states.torch_objects import COMPOUND

DEEPEST = 100
"""Containers within containers that are looked through; a module tree is a third of that."""
_ARRAY = "multiarray._reconstruct"
_OF_NO_INTEREST = (
    "numpy",
    "collections",
    "_codecs",
    "torch.distributed",
    "torch.serialization",
    COMPOUND,
)
_ARRAY_TYPES = frozenset(["f2", "f4", "f8", "c8", "c16"])

Leaf = tuple[tuple[str, ...], StoredTensor | Tensor | float]


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what goes wrong on the way through a file's tree into the one error for users."""
    try:
        yield
    except TooDeepError as error:
        raise InputError("is nested more deeply than any training's state", where=path) from error
    except (ValueError, RuntimeError) as error:
        raise InputError(f"is damaged: {error}", where=path) from error


class TooDeepError(Exception):
    """A state nested more deeply than any training makes it."""


def leaves(tree: Any) -> Iterator[Leaf]:
    """Every tensor and float of a tree with its path, in the order of the file.

    A container that stands in two places is gone through once: a few kilobytes can hold a tree
    that unfolds to billions of leaves, or one that holds itself.

    Raises:
        TooDeepError: it is nested more deeply than ``DEEPEST``.
    """
    seen: set[int] = set()
    yield from _leaves(tree, (), seen, DEEPEST)


def _leaves(node: Any, path: tuple[str, ...], seen: set[int], deeper: int) -> Iterator[Leaf]:
    if isinstance(node, StoredTensor | Tensor | float):
        yield path, node
        return
    if not isinstance(node, dict | list | tuple | Built) or id(node) in seen:
        return
    if not deeper:
        raise TooDeepError
    if not isinstance(node, tuple) or node:  # () is one object wherever it stands
        seen.add(id(node))
    if isinstance(node, Built):
        array = _array(node)
        if array is not None:
            yield path, array
            return
    for key, child in _children(node):
        yield from _leaves(child, (*path, *key), seen, deeper - 1)


def _children(node: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What a container holds, with the part of the path that leads there."""
    if isinstance(node, dict):
        yield from (((_text(key),), value) for key, value in node.items())
    elif isinstance(node, list | tuple):
        yield from (((str(i),), value) for i, value in enumerate(node))
    else:
        # What an object holds stands under its attributes' names, as if it were a dict.
        yield from (((), value) for value in (node.state, node.args, node.items, node.entries))


def _text(key: Any) -> str:
    return key.name if isinstance(key, Built) else str(key)


def _array(node: Built) -> Tensor | None:
    """A floating numpy array that was pickled by value; None where it is anything else."""
    state = node.state
    if not node.name.endswith(_ARRAY) or not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, dtype, fortran, raw = state
    code = dtype.args[0] if isinstance(dtype, Built) and dtype.args else None
    if code not in _ARRAY_TYPES or not isinstance(raw, bytes) or not isinstance(shape, tuple):
        return None
    try:
        flat = np.frombuffer(bytearray(raw), dtype=f"<{code}")
        return torch.from_numpy(flat.reshape(shape, order="F" if fortran else "C"))
    except (ValueError, TypeError):
        return None


def built_names(tree: Any) -> list[str]:
    """The classes and functions that would have been called for this tree, sorted."""
    found: set[str] = set()
    stack, seen = [tree], set[int]()
    while stack:
        node = stack.pop()
        if not isinstance(node, dict | list | tuple | Built) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Built):
            first = node.args[0] if node.args else None
            named = getattr(first, "name", "") if node.name == "copyreg._reconstructor" else ""
            found.add(named or node.name)
        stack += [child for _, child in _children(node)]
    return sorted(name for name in found if not name.startswith(_OF_NO_INTEREST))
