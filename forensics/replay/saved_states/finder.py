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
from forensics.replay.saved_states.step_names import step_in_name
from forensics.replay.saved_states.torch_state import open_torch_state

SUFFIXES = frozenset((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar"))
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
    """A saved state that was found and not yet opened.

    Attributes:
        path: file or folder.
        step: the step its name or its contents tell; None for neither.
        root: the folder it was found in; None where the user named it.
        refused: why it must not be opened; empty where it may.
    """

    path: Path
    step: int | None
    root: Path | None = None
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
        with path.open("rb") as file:
            head = file.read(9) if path.is_file() else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be opened ({reason})", where=path) from error
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return open_safetensors_state(path, root)
    return open_torch_state(path, root, known_parameters(path))


def _open_folder(folder: Path) -> SavedState:
    if is_distributed_folder(folder):
        return open_distributed_state(folder)
    if is_sharded_folder(folder):
        return open_sharded_state(folder)
    raise InputError("is a folder without a saved state", where=folder)


def find_states(folder: Path) -> list[StateFile]:
    """The saved states in a folder, oldest first; those without a step come last.

    Files of other kinds, hidden ones, and those that lie beside weights (optimizer, random
    generators) are left out. A name's step is taken where it tells one, else what is inside.

    Raises:
        InputError: there is no such folder.
    """
    try:
        entries = sorted(folder.iterdir())[:MOST_ENTRIES]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be listed ({reason})", where=folder) from error
    found = [_described(path, folder) for path in _states_among(entries)]
    return sorted(found, key=lambda s: (s.step is None, s.step or 0, s.path.name))


def _states_among(entries: list[Path]) -> Iterator[Path]:
    for path in entries:
        if path.name.startswith(".") or path.name in _SIDE_FILES:
            continue
        if path.is_dir():
            if is_distributed_folder(path) or is_sharded_folder(path):
                yield path
        elif path.suffix in SUFFIXES:
            yield path


def _described(path: Path, root: Path) -> StateFile:
    try:
        refuse_outside(path, root)
    except InputError as error:
        return StateFile(path, step_in_name(path.name), root, error.what)
    step = step_in_name(path.name)
    if step is None:
        try:
            step = open_state(path, root).step
        except InputError:
            step = None
    return StateFile(path, step, root)
