"""The checkpoints of a run as their file names and health files tell them, without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.frozen import dataclass
from forensics.runlog.csv_reader.spans import opened

_NAME = re.compile(r"step-(\d{1,18})(\.nonfinite)?(\.pt)?\Z")
_DISTRIBUTED = (".metadata", "rank-00000.health.json")
"""What a folder of several ranks has once it is whole: torch's own file, and this program's."""
_LARGEST_HEALTH = 16 << 20
_STATES = frozenset((".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar"))
"""How files end that hold weights; their first bytes must agree."""


@dataclass(frozen=True)
class CheckpointInfo:
    """A saved state and what its health file says, read without torch.

    Attributes:
        step: the state is the one *before* this step.
        path: the checkpoint file; of a sharded training a folder.
        healthy: is it fit to resume from, as its health file says; False for a state kept aside
            as non-finite, None where no health file tells.
        health: the parsed ``step-N.health.json``, or empty.
    """

    step: int
    path: Path
    healthy: bool | None
    health: dict[str, Any]

    @property
    def set_aside(self) -> bool:
        """Was it saved under the name of a non-finite one, which is no place to start from?"""
        match = _NAME.match(self.path.name)
        return match is not None and match.group(2) is not None


@dataclass(frozen=True)
class BadTensor:
    """A tensor or number of a state that is not finite.

    Attributes:
        name: dotted path in the state, such as ``optimizers.0.state.3.exp_avg``.
        kind: ``param``, ``buffer``, ``optimizer``, ``ema``, ``scaler``, ``lr`` or ``other``.
        parameter: the parameter it belongs to; empty where it belongs to none.
        nan: elements that are NaN.
        inf: elements that are Inf.
        numel: elements in all.
    """

    name: str
    kind: str
    parameter: str
    nan: int
    inf: int
    numel: int


def checkpoint_name(step: int, *, nonfinite: bool = False) -> str:
    """File name of the state before a step: ``step-00000040.pt``; a bad one is kept aside."""
    return f"step-{step:08d}{'.nonfinite' if nonfinite else ''}.pt"


def health_path(checkpoint: Path) -> Path:
    """The health file beside a checkpoint: ``step-00000040.health.json``."""
    return checkpoint.with_name(checkpoint.name.removesuffix(".pt") + ".health.json")


def checkpoints_in(directory: Path) -> tuple[CheckpointInfo, ...]:
    """The checkpoints of a directory in ascending order of step; files of other names are left out.

    Raises:
        OSError: the directory cannot be listed.
    """
    found = [info for path in directory.iterdir() if (info := read_checkpoint_info(path))]
    return tuple(sorted(found, key=lambda info: (info.step, info.path.name)))


def read_checkpoint_info(path: Path) -> CheckpointInfo | None:
    """What the name of a checkpoint and its health file say; None for anything else."""
    match = _NAME.match(path.name)
    if not match:
        return None
    needed = [path] if match.group(3) else [path / name for name in _DISTRIBUTED]
    if not all(file.is_file() for file in needed):
        return None
    health = _health(path)
    healthy = False if match.group(2) else _verdict(health)
    return CheckpointInfo(int(match.group(1)), path, healthy, health)


def is_state(path: Path) -> bool:
    """Is a file a saved state of some kind, by its name and its first bytes?"""
    if path.suffix not in _STATES:
        return False
    try:
        with opened(path) as file:
            start = file.read(16)
    except OSError:
        return False
    return start.startswith((b"PK\x03\x04", b"\x80")) or start[8:9] == b"{"


def bad_tensors(health: Mapping[str, Any]) -> tuple[BadTensor, ...]:
    """The bad tensors of a health file; entries that make no sense are left out."""
    entries = health.get("bad")
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            name, kind, parameter = (str(entry.get(k, "")) for k in ("name", "kind", "parameter"))
            nan, inf, numel = (entry.get(key, 0) for key in ("nan", "inf", "numel"))
            if all(type(count) is int for count in (nan, inf, numel)):
                found.append(BadTensor(name, kind, parameter, nan, inf, numel))
    return tuple(found)


def _health(checkpoint: Path) -> dict[str, Any]:
    """The health file's contents; empty where there is none or it is damaged."""
    path = health_path(checkpoint)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_HEALTH:
            return {}  # a pipe of that name would be waited for forever
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _verdict(health: dict[str, Any]) -> bool | None:
    healthy = health.get("healthy")
    return healthy if isinstance(healthy, bool) else None
