"""State in a form that ``torch.load(weights_only=True)`` takes: tensors, numbers, texts, lists."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class NotPortableError(TypeError):
    """A value that only an unsafe load could bring back; the message says where it is."""


def portable(value: Any, where: str = "state") -> Any:
    """``value`` with everything that a safe load refuses turned into what it takes.

    Numpy arrays become tensors, their scalars numbers, paths texts, sets lists.

    Raises:
        NotPortableError: it holds an object of another kind.
    """
    if isinstance(value, Tensor):
        return value.detach() if isinstance(value, nn.Parameter) else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.dtype | torch.device | torch.Size) or type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return _array(value, where)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        pairs = [(portable(k, where), portable(v, f"{where}.{k}")) for k, v in value.items()]
        return _mapping_like(value)(pairs)
    if isinstance(value, list | tuple | set | frozenset | range):
        items = [portable(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if type(value) is tuple else items
    if isinstance(value, bool | int | float | str):
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    raise NotPortableError(f"{where} is a {type(value).__name__}")


def _mapping_like(value: Mapping[Any, Any]) -> Any:
    """The kind of mapping to rebuild: safe loads know three."""
    if isinstance(value, Counter):
        return lambda pairs: Counter(dict(pairs))
    return OrderedDict if isinstance(value, OrderedDict) else dict


def _array(value: np.ndarray[Any, Any], where: str) -> Tensor:
    unsigned = value.dtype.kind == "u" and value.dtype.itemsize > 1
    try:
        return torch.from_numpy(value.astype(np.int64) if unsigned else value.copy())
    except TypeError as error:
        raise NotPortableError(f"{where} is an array of {value.dtype}") from error
