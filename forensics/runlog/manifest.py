"""``run.json``: what a run was, where it stands, and how it ended.

The immutable part (recipe, seeds, precision, parameters …) is written once; the mutable part
(segments, ended, checkpoints, what is missing) is replaced atomically.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, Self

from forensics.errors import InputError
from forensics.frozen import dataclass
from forensics.runlog.atomic import atomic_write, rewrite
from forensics.runlog.json_fields import FieldError, dataclass_from_json, plain_json
from forensics.runlog.schema import SCHEMA_VERSION

MANIFEST_NAME = "run.json"
_LARGEST = 64 << 20
"""Bytes. A hundred thousand parameters take 20 MB; anything larger is no manifest of ours."""


class NewerSchemaError(InputError):
    """A run that a newer version of this program has written."""


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter as the optimizer sees it.

    Attributes:
        name: as in ``named_parameters()``.
        shape: its size per dimension.
        dtype: such as ``float32``.
        group: index of its optimizer parameter group; -1 where no optimizer holds it.
        tied: further names of the same tensor.
        requires_grad: False for a frozen one.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    group: int = 0
    tied: tuple[str, ...] = ()
    requires_grad: bool = True

    @property
    def numel(self) -> int:
        """How many elements it has."""
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True)
class ScalerPolicy:
    """What the loss scaler does on overflow and on clean steps; disabled means scale 1 always."""

    enabled: bool = False
    init_scale: float = 1.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    floor: float = 0.0


@dataclass(frozen=True)
class Segment:
    """One uninterrupted stretch of recording: a start or a resume.

    Attributes:
        start_step: first step of the segment.
        started: UTC start, ISO 8601.
        ended: UTC end, or None while it runs or when it was killed.
        reason: ``start`` or ``resume``.
    """

    start_step: int = 0
    started: str = ""
    ended: str | None = None
    reason: str = "start"


@dataclass(frozen=True)
class Ended:
    """How the run ended: ``finished``, ``interrupted``, ``alarm`` or ``exception``."""

    how: str
    step: int | None = None
    message: str = ""


@dataclass(frozen=True)
class SavedAt:
    """A state that the loop saved by itself, in a format of its own.

    Attributes:
        step: it is the state before this step.
        path: the file or folder, relative to the run directory.
    """

    step: int = 0
    path: str = ""


@dataclass(frozen=True)
class Manifest:
    """The contents of ``run.json``. A field that the file lacks keeps its default (unknown).

    Attributes:
        recipe: ``{"name", "entry_point", "file", "config"}``: how to rebuild the training.
        seeds: by name (``torch``, ``numpy``, ``python``, ``data``).
        device: ``cpu``, ``cuda`` …; the optimizer's, and so autocast's.
        precision: ``fp32``, ``fp16`` or ``bf16``; empty when unknown.
        autocast_device: device type of autocast; empty where autocast was off.
        max_norm: clip threshold; None where nothing clips.
        post_clip: ``measured`` at optimizer entry, or ``derived`` from the coefficient.
        optimizer: ``{"name", "flavour", ...}``; flavour is foreach, fused or single.
        schedule: ``{"name", "warmup_steps", "total_steps", ...}``.
        recording: what was recorded how often, as ``RecordOptions`` names it; a resume goes on so.
        loop: what hooks saw a loop do in a wrong order, ``{"KIND_steps", "first_KIND"}``;
            the kinds are in docs/run-format.md.
        columns: all columns of steps.csv in order.
        arrival_order: parameter names in the order their gradients arrive in backward.
        sharding: how the ranks shared out the parameters, in words; empty where each held all.
        states: what the loop saved itself, outside ``checkpoints/``, in ascending order of step.
        missing: what could not be recorded, one clause each (disk full, unwritable file).
        checkpoints: ``{"best", "last_healthy"}``: steps.
        unknown: keys this version does not know, kept as they are.
    """

    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    device: str = ""
    device_name: str = ""
    precision: str = ""
    autocast_device: str = ""
    max_norm: float | None = None
    accumulation: int = 1
    post_clip: str = "derived"
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    scaler: ScalerPolicy | None = None
    recording: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    parameters: tuple[ParameterInfo, ...] = ()
    arrival_order: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] = field(default_factory=dict)
    data_version: str = ""
    world_size: int = 1
    rank: int = 0
    sharding: str = ""
    threads: int = 0
    processor: str = ""
    segments: tuple[Segment, ...] = ()
    ended: Ended | None = None
    checkpoints: Mapping[str, int | None] = field(default_factory=dict)
    states: tuple[SavedAt, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Has nobody written how the run ended? True while it runs, and after a ``kill -9``."""
        return self.ended is None

    def to_json(self) -> dict[str, Any]:
        """A plain dict, ready for ``json.dumps(..., allow_nan=False)``.

        Non-finite numbers become the strings ``nan``, ``inf`` and ``-inf``; what JSON has no
        form for (paths, dtypes) becomes its text.
        """
        data: dict[str, Any] = plain_json(self)
        return {**data.pop("unknown"), **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From a parsed ``run.json``.

        A field that is missing or null keeps its default; keys that are not known are kept.

        Raises:
            ValueError: a field is of the wrong type; the message names it.
        """
        known = {f.name for f in fields(cls)} - {"unknown"}
        manifest = dataclass_from_json(cls, {k: v for k, v in data.items() if k in known})
        object.__setattr__(manifest, "unknown", {k: v for k, v in data.items() if k not in known})
        return manifest


def write_manifest(run_dir: str | os.PathLike[str], manifest: Manifest) -> None:
    """Replace ``run.json`` whole; on a full disk write over it, for it must say what is missing.

    Raises:
        OSError: it cannot be written; the old one is as it was.
    """
    text = json.dumps(manifest.to_json(), allow_nan=False, indent=1, ensure_ascii=False) + "\n"
    path = Path(run_dir) / MANIFEST_NAME
    try:
        atomic_write(path, text)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.is_file():
            raise
        rewrite(path, text)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest.

    Args:
        path: ``run.json`` or the run directory that holds it.

    Raises:
        NewerSchemaError: a newer version of this program has written it.
        InputError: it is missing, unreadable, no JSON, or a field is of the wrong type.
    """
    source = Path(path)
    if source.is_dir():
        source = source / MANIFEST_NAME
    data = _parsed(source)
    version = data.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"written in run format {version}; this version reads up to {SCHEMA_VERSION}",
            where=source,
            hint="upgrade the checkout that forensics was installed from",
        )
    try:
        return Manifest.from_json(data)
    except FieldError as error:
        raise InputError(f"is damaged: {error}", where=source) from error


def _parsed(source: Path) -> dict[str, Any]:
    """The file as a JSON object, or an InputError."""
    if source.exists() and not source.is_file():  # opening a pipe would wait for a writer
        raise InputError("is not a file", where=source)
    try:
        with source.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise InputError(f"is larger than {_LARGEST >> 20} MiB: no manifest", where=source)
        data = json.loads(text)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=source) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"is not readable as JSON ({reason[:120]})", where=source) from error
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", where=source)
    return data
