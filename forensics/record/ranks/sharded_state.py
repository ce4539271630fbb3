"""The state of a training whose tensors are spread over ranks, as one folder of all ranks.

In it lie, by name, the tensors (``model.0.weight``, ``optim.state.0.weight.exp_avg``), each rank's
shards in its own file; the other parts of what ``gather_state`` has (``schedulers``, ``scaler``),
with the names where tensors belong; and of each rank ``rng.rank-0000N``: its random generators, the
buffers of its model and the further owners of state, of which each rank has its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forensics.errors import InputError
from forensics.record.local_part import is_distributed
from forensics.record.rng import rng_state
from forensics.record.saved_file import load_plain

_PLACE = "tensor of this name"
_ALIKE = "spread as"
_VALUE = "value"
_OF_RANK = "rng."
_MAY_LACK = ("scaler", "ema")
_SHARED = ("model", "optimizers", "ema")
"""Parts whose tensors are the run's; elsewhere only those that are spread are."""

Names = Sequence[Sequence[str]]
"""Of each optimizer the names of its parameters, in order."""


def packed(state: Mapping[str, Any], names: Names, *, rank: int) -> dict[str, Any]:
    """What this rank gives to the folder, by name.

    Args:
        state: as ``gather_state`` makes it on this rank.
        names: of the optimizers' parameters.
        rank: its number; rank 0 gives what all share.
    """
    tensors: dict[str, Tensor] = {}
    packer = _Packer(names, tensors)
    rest = {key: packer.walk(value, (key,)) for key, value in state.items() if key != "rng"}
    model = state["model"] or {}
    own = {
        "rng": state["rng"],
        "extra": rest.pop("extra", {}),
        "buffers": {n: v for n, v in model.items() if _plain(v)},
    }
    given: dict[str, Any] = {n: t for n, t in tensors.items() if rank == 0 or is_distributed(t)}
    if rank == 0:
        # What is None, too: a scaler that was not used is not one that was forgotten.
        given |= {part: _as_bytes({_VALUE: value}) for part, value in rest.items()}
        given["step"] = state["step"]
    return {**given, _OF_RANK + rank_key(rank): _as_bytes(own)}


def unpacked(
    folder: Path, parameters: Mapping[str, Tensor] | None = None, *, rank: int = 0
) -> dict[str, Any]:
    """The state in a folder, as ``gather_state`` made it.

    Args:
        folder: as ``packed`` filled it, by however many ranks.
        parameters: of the model here, by name: tensors are spread as they are. Without them every
            tensor is whole.
        rank: whose own parts; those of a rank that the folder does not know are left as here.

    Raises:
        InputError: it cannot be read safely, or is of another kind.
    """
    from forensics.record.ranks.distributed_folder import DistributedFolder

    found = DistributedFolder(folder)
    keys = [key for key in sorted(found.others) if key.startswith(_OF_RANK)]
    ours, first = _OF_RANK + rank_key(rank), _OF_RANK + rank_key(0)
    if not {"format", "step", first} <= found.others:
        raise InputError("is no checkpoint of this program's", where=folder)
    read = found.read(dict.fromkeys(found.others))
    parts = found.others - {*keys, "step"}
    state = dict.fromkeys(_MAY_LACK)
    state |= {part: _from_bytes(read[part], folder).get(_VALUE) for part in parts}
    own = _from_bytes(read.get(ours, read[first]), folder)
    state |= {"step": read["step"], "extra": own.get("extra", {})}
    targets: dict[str, Tensor] = {}
    for name, alike in _places(state):
        if name not in found.tensors:
            raise InputError(f"lacks {name}", where=folder)
        targets[name] = _target(*found.tensors[name], (parameters or {}).get(alike))
    tensors = found.read(targets)
    state = _filled(state, tensors)
    state["model"] = {**state["model"], **own.get("buffers", {})}
    state["rng"] = own["rng"] if ours in keys else rng_state()
    if parameters is None:
        state["ranks"] = {"rng": [_from_bytes(read[other], folder)["rng"] for other in keys]}
    return dict(state)


def rank_key(rank: int) -> str:
    """The name of what is a rank's own."""
    return f"rank-{rank:05d}"


class _Packer:
    """Takes the tensors out of a nested state."""

    def __init__(self, names: Names, tensors: dict[str, Tensor]) -> None:
        self._names, self._tensors = names, tensors

    def walk(self, value: Any, path: tuple[Any, ...]) -> Any:
        """The value with places where tensors were."""
        if isinstance(value, Tensor):
            if not is_distributed(value) and path[0] not in _SHARED:
                return value
            name, alike = self._named(path)
            self._tensors[name] = value
            return {_PLACE: name, _ALIKE: alike if is_distributed(value) else ""}
        if isinstance(value, Mapping):
            return type(value)({k: self.walk(v, (*path, k)) for k, v in value.items()})  # type: ignore[call-arg]
        if type(value) in (list, tuple):
            return type(value)(self.walk(v, (*path, i)) for i, v in enumerate(value))
        return value

    def _named(self, path: tuple[Any, ...]) -> tuple[str, str]:
        """A tensor's name in the folder, and the parameter that it is spread as."""
        if path[0] == "model":
            return ".".join(map(str, path)), ".".join(map(str, path[1:]))
        if path[0] == "optimizers" and path[2] == "state":
            owner = self._names[path[1]][path[3]]
            return ".".join(("optim.state", owner, *map(str, path[4:]))), owner
        whole = ".".join(map(str, path))
        known = {name for members in self._names for name in members}
        ends = [name for name in known if whole.endswith(f".{name}")]
        return whole, max(ends, key=len, default="")


def _target(size: torch.Size, dtype: torch.dtype, alike: Tensor | None) -> Tensor:
    """Where a tensor is read to: spread as a parameter of its size, or whole."""
    if alike is not None and is_distributed(alike) and alike.shape == size:
        return torch.empty_like(alike.detach(), dtype=dtype)
    return torch.empty(size, dtype=dtype)


def _places(value: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    _filled_by(value, lambda place: found.append((place[_PLACE], place[_ALIKE])))
    return found


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    return _filled_by(value, lambda place: tensors[place[_PLACE]])


def _filled_by(value: Any, fill: Callable[[Mapping[str, str]], Any]) -> Any:
    """A nested state with something else in every place of a tensor."""
    if isinstance(value, Mapping):
        if _PLACE in value:
            return fill(value)
        return type(value)({k: _filled_by(v, fill) for k, v in value.items()})  # type: ignore[call-arg]
    if type(value) in (list, tuple):
        return type(value)(_filled_by(v, fill) for v in value)
    return value


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_distributed(value)


def _as_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(data: Any, folder: Path) -> dict[str, Any]:
    found = load_plain(data) if isinstance(data, bytes) else None
    if not isinstance(found, dict):
        raise InputError("is no checkpoint of this program's", where=folder)
    return found
