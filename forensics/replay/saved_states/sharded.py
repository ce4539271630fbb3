"""Folders of Hugging Face: a model in one file or in shards with an index, and side files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import InputError
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.mapped_file import MappedFile
from forensics.replay.saved_states.resume_parts import missing_parts
from forensics.replay.saved_states.safetensors_file import open_safetensors_state
from forensics.replay.saved_states.saved_state import SavedState, StateValue
from forensics.replay.saved_states.torch_file import read_torch_file
from forensics.replay.saved_states.torch_state import open_torch_state, tree_values
from forensics.replay.saved_states.zip_records import Window

_LARGEST_JSON = 32 << 20
_STEMS = ("model", "pytorch_model", "adapter_model", "diffusion_pytorch_model")
_SUFFIXES = (".safetensors", ".bin")
_SIDE = {
    "optimizer.pt": roles.OPTIMIZER,
    "optimizer.bin": roles.OPTIMIZER,
    "scheduler.pt": roles.SCHEDULER,
    "scheduler.bin": roles.SCHEDULER,
    "scaler.pt": roles.SCALER,
    "scaler.bin": roles.SCALER,
    "rng_state.pth": roles.RNG,
    "rng_state_0.pth": roles.RNG,
    "random_states_0.pkl": roles.RNG,
}
_PROGRESS = "trainer_state.json"


@dataclass(frozen=True)
class _Side:
    """A file beside the weights: what it holds, or why it could not be read."""

    name: str
    role: str
    tree: Any = None
    size: int = 0
    refused: str = ""


def is_sharded_folder(folder: Path) -> bool:
    """Does a folder hold a model as Hugging Face saves it?"""
    return bool(_weights(folder))


def open_sharded_state(folder: Path) -> SavedState:
    """Open a ``checkpoint-N`` folder: weights, and optimizer, scheduler and scaler beside them.

    A side file that cannot be read safely is missing for a resume; it does not spoil the weights.

    Raises:
        InputError: the weights cannot be read safely.
    """
    files = _files(folder)
    sides = [_read_side(folder, name, role) for name, role in _SIDE.items()]
    kept = [side for side in sides if side is not None]
    step, unread = _progress(folder)
    present = {roles.PARAM, *(side.role for side in kept if not side.refused)}
    if step is not None:
        present.add(roles.DATA)
    for file in files[:1]:
        _open(file, folder)  # the first shard at once: what is no weights is said here
    return SavedState(
        path=folder,
        format=_format(files),
        step=step,
        size=sum(map(_size, files)) + sum(side.size for side in kept),
        values=lambda: _values(files, folder, kept),
        missing=missing_parts(present),
        notes=tuple(
            f"{name} cannot be read safely ({why})."
            for name, why in [*((side.name, side.refused) for side in kept), (_PROGRESS, unread)]
            if why
        ),
    )


def _values(files: list[Path], folder: Path, sides: list[_Side]) -> Iterator[StateValue]:
    """Shard after shard: each is mapped only while it is looked at."""
    for file in files:
        yield from _open(file, folder).values()
    for side in sides:
        if not side.refused and side.role != roles.RNG:
            yield from tree_values(side.tree, folder / side.name, prefix=side.role)


def _open(file: Path, folder: Path) -> SavedState:
    if file.suffix == ".safetensors":
        return open_safetensors_state(file, folder)
    return open_torch_state(file, folder)


def _weights(folder: Path) -> Path | None:
    """The index, or the one file of the weights."""
    names = [
        f"{stem}{suffix}{end}"
        for end in (".index.json", "")
        for stem in _STEMS
        for suffix in _SUFFIXES
    ]
    return next((folder / name for name in names if (folder / name).exists()), None)


def _files(folder: Path) -> list[Path]:
    """The files of the weights, in the order of the index."""
    weights = _weights(folder)
    if weights is None:
        raise InputError("holds no weights", where=folder)
    if weights.suffix != ".json":
        return [weights]
    names = _json(weights, folder).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError("has no weight_map", where=weights)
    for name in names.values():
        if not isinstance(name, str) or "\0" in name or Path(name).name != name or name == "..":
            raise InputError(f"names a shard outside its folder: {str(name)[:80]!r}", where=weights)
    shards = list(dict.fromkeys(names.values()))
    lost = [name for name in shards if not (folder / name).exists()]
    if lost:
        raise InputError(
            f"{len(lost)} of {len(shards)} shards are missing, {lost[0]} first", where=folder
        )
    return [folder / name for name in shards]


def _read_side(folder: Path, name: str, role: str) -> _Side | None:
    path = folder / name
    if not path.exists():
        return None
    try:
        file = MappedFile(path, folder)
        found = read_torch_file(Window(file, 0, file.size))
        for _ in tree_values(found.tree, path, prefix=role):
            pass  # a tensor that lies outside the file is found here, not among the weights
    except InputError as error:
        return _Side(name, role, refused=error.what)
    return _Side(name, role, found.tree, file.size)


def _progress(folder: Path) -> tuple[int | None, str]:
    """The step, and why it cannot be read: weights are sound whatever lies beside them."""
    path = folder / _PROGRESS
    if not path.exists() and not path.is_symlink():
        return None, ""
    try:
        step = _json(path, folder).get("global_step")
    except InputError as error:
        return None, error.what
    return (step if type(step) is int and 0 <= step < 1 << 62 else None), ""


def _json(path: Path, folder: Path) -> dict[str, Any]:
    """A small JSON object; InputError where it is none."""
    file = MappedFile(path, folder)
    if file.size > _LARGEST_JSON:
        raise InputError(f"has {file.size:,} bytes, too many for JSON", where=path)
    try:
        found = json.loads(file.read(0, file.size))
    except (ValueError, RecursionError) as error:
        raise InputError("is no JSON", where=path) from error
    if not isinstance(found, dict):
        raise InputError("is no JSON object", where=path)
    return found


def _format(files: list[Path]) -> str:
    plain = "safetensors" if files[0].suffix == ".safetensors" else "torch"
    return f"Hugging Face folder, {plain}" + (f", {len(files)} shards" if len(files) > 1 else "")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
