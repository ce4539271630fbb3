"""The saved states in a folder: which files and folders they are, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forensics.errors import InputError
from forensics.replay.saved_states.distributed import is_distributed_folder, open_distributed_state
from forensics.replay.saved_states.mapped_file import refuse_outside
from forensics.replay.saved_states.owners import known_parameters
from forensics.replay.saved_states.safetensors_file import open_safetensors_state
from forensics.replay.saved_states.saved_state import SavedState
from forensics.replay.saved_states.sharded import is_sharded_folder, open_sharded_state
from forensics.replay.saved_states.step_names import Position, Unit, position_in_name
from forensics.replay.saved_states.torch_state import open_torch_state

SUFFIXES = frozenset((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar", ".th"))
_SIDE_FILES = frozenset(
    [
        "optimizer.pt",
        "optimizer.bin",
        "scheduler.pt",
        "scheduler.bin",
        "scaler.pt",
        "scaler.bin",
        "training_args.bin",
        "rng_state.pth",
    ]
)
MOST_ENTRIES = 100_000
"""Entries of a folder that are looked at."""


@dataclass(frozen=True)
class StateFile:
    """A saved state, or a part of one, that was found and not yet looked at.

    Attributes:
        path: file or folder.
        position: where in the training it was saved; None where nothing tells.
        root: the folder it was found in, which links must not lead out of; None where the user
            named it.
        refused: why it must not be opened; empty where it may.
    """

    path: Path
    position: Position | None
    root: Path | None
    refused: str = ""


def open_state(path: Path, root: Path | None = None) -> SavedState:
    """Open a saved state of any format, memory-mapped, running nothing of what it holds.

    Args:
        path: a file, or a folder of shards.
        root: the folder that links must not lead out of; None where the user named the path.

    Raises:
        InputError: it cannot be read safely; the message says why, and is the whole story.
    """
    try:
        if root is not None:
            refuse_outside(path, root)
        if path.is_dir():
            return _open_folder(path)
        if path.exists() and not path.is_file():
            raise InputError("is no regular file", where=path)
        with path.open("rb") as file:
            head = file.read(9)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be opened ({reason})", where=path) from error
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return open_safetensors_state(path, root)
    return open_torch_state(path, root, known_parameters(path))


def state_root(path: Path, run: Path) -> Path:
    """The folder that a state of a run must not lead out of.

    A state that is itself a link must stay in the run directory: a run may come from a stranger.
    The folder of the states may be a link of the user's to another disk.

    Args:
        path: a file, or a folder of shards.
        run: the run directory, or its log.
    """
    if not path.is_symlink():
        return path.parent
    return run if run.is_dir() else run.parent


def is_state_folder(folder: Path) -> bool:
    """Is a folder one state in parts, rather than a folder of states?"""
    return is_distributed_folder(folder) or is_sharded_folder(folder)


def _open_folder(folder: Path) -> SavedState:
    if is_distributed_folder(folder):
        return open_distributed_state(folder)
    if is_sharded_folder(folder):
        return open_sharded_state(folder)
    raise InputError("is a folder without a saved state", where=folder)


def find_states(folder: Path) -> list[StateFile]:
    """The saved states in a folder and in folders such as ``step-500/`` in it, by name.

    Hidden files, those of other kinds, and those that lie beside weights (optimizer, random
    generators) are left out. A step in the name counts, else the one inside.

    Raises:
        InputError: there is no such folder.
    """
    return [_described(path, folder, named) for path, named in _among(_entries(folder))]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:MOST_ENTRIES]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be listed ({reason})", where=folder) from error


def _among(entries: list[Path]) -> Iterator[tuple[Path, str]]:
    """The states among a folder's entries, each with the name that tells its position."""
    for path in entries:
        if path.name.startswith(".") or path.name in _SIDE_FILES:
            continue
        if not path.is_dir():
            if path.suffix in SUFFIXES:
                yield path, path.name
        elif is_state_folder(path):
            yield path, path.name
        elif position_in_name(path.name) is not None and not path.is_symlink():
            yield from ((part, path.name) for part in parts_of(path))


def parts_of(folder: Path, deeper: int = 1) -> Iterator[Path]:
    """The files of one step's folder, and of the ranks' folders in it (``mp_rank_00``)."""
    for path in _entries(folder):
        if path.is_dir():
            if deeper and not path.is_symlink():
                yield from parts_of(path, deeper - 1)
        elif path.suffix in SUFFIXES and not path.name.startswith("."):
            yield path


def _described(path: Path, root: Path, named: str) -> StateFile:
    position = position_in_name(named)
    try:
        refuse_outside(path, root)
        if position is None or position.unit is not Unit.STEP:
            step = open_state(path, root).step
            position = position if step is None else Position(Unit.STEP, step)
    except InputError as error:
        return StateFile(path, position, root, error.what)
    return StateFile(path, position, root)
