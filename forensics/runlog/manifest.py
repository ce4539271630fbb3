"""``run.json``: what a run was, where it stands, and how it ended.

The immutable part (recipe, seeds, precision, parameters …) is written once; the mutable part
(segments, ended, checkpoints, what is missing) is replaced atomically.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from forensics.runlog.schema import SCHEMA_VERSION

_T = TypeVar("_T")


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
        columns: all columns of steps.csv in order.
        arrival_order: parameter names in the order their gradients arrive in backward.
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
    columns: tuple[str, ...] = ()
    parameters: tuple[ParameterInfo, ...] = ()
    arrival_order: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, Any] = field(default_factory=dict)
    data_version: str = ""
    world_size: int = 1
    rank: int = 0
    threads: int = 0
    processor: str = ""
    segments: tuple[Segment, ...] = ()
    ended: Ended | None = None
    checkpoints: Mapping[str, int | None] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict, ready for ``json.dumps(..., allow_nan=False)``."""
        data = asdict(self)
        return {**data.pop("unknown"), **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """From a parsed ``run.json``; fields of the wrong type raise TypeError or ValueError."""
        known = {f.name for f in fields(cls)} - {"unknown"}
        values: dict[str, Any] = {k: v for k, v in data.items() if k in known}
        if values.get("scaler"):
            values["scaler"] = _build(ScalerPolicy, values["scaler"])
        if values.get("ended"):
            values["ended"] = _build(Ended, values["ended"])
        values["segments"] = tuple(_build(Segment, s) for s in values.get("segments", ()))
        values["parameters"] = tuple(
            _build(ParameterInfo, {**p, "shape": tuple(p["shape"]), "tied": tuple(p["tied"])})
            for p in values.get("parameters", ())
        )
        for name in ("columns", "arrival_order", "missing"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values, unknown={k: v for k, v in data.items() if k not in known})


def _build(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """A dataclass from a mapping, ignoring keys it does not know."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in data.items() if k in known})
