"""A bisection as JSON, both ways, and whether one that lies in a run directory still holds.

``bisect.json`` may come from a stranger, or from a log that has changed since: every field is
checked on the way in, and the rows that the result was read off have to be there still.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    ChainLink,
    CheckpointVerdict,
    Departure,
    FaultKind,
    Growth,
    Origin,
    Persistence,
    TensorFacts,
    WhatIf,
)
from forensics.frozen import dataclass
from forensics.runlog.json_fields import FieldError, dataclass_from_json, plain_json
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""
NAME = "bisect.json"
_PRINTED = ("step", "lr", "grad_l2_pre_clip", "loss", "skipped", "scaler_scale")
"""Columns of the rows' fingerprint: what a replay is compared with."""
_LARGEST_STEP = 1 << 62


def flat_fields(result: BisectionResult) -> dict[str, Any]:
    """The fields of the ``bisection`` object, the origin's beside the others; enums are words.

    The values are still tuples, dataclasses and numbers, for a JSON writer to spell.
    """
    whole = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "origin"}
    origin = result.origin or Origin(kind=FaultKind.NAN, phase="", operator="")
    located = {f.name: getattr(origin, f.name) for f in fields(origin)}
    located["kind"] = result.origin.kind.value if result.origin else ""
    whole["status"], whole["persistence"] = result.status.value, result.persistence.value
    head = ("path", "status", "reason", "first_bad_step", "root_step")
    return {**{name: whole.pop(name) for name in head}, **located, **whole}


def bisection_document(result: BisectionResult, steps: StepTable) -> dict[str, Any]:
    """The contents of ``bisect.json``, ready for ``json.dumps(..., allow_nan=False)``."""
    return {
        "format_version": FORMAT_VERSION,
        "log": log_fingerprint(steps, result.first_bad_step),
        "bisection": plain_json(flat_fields(result)),
    }


def bisection_from_json(data: Mapping[str, Any]) -> tuple[BisectionResult | None, tuple[str, ...]]:
    """A result from its JSON object, and a clause for each field that had to be left out.

    None where there is no status to go by.
    """
    flat, notes = _read_fields(data)
    try:
        status = BisectStatus(flat.status)
    except ValueError:
        return None, (*notes, f"{NAME} does not say how the bisection ended; it is not used")
    kept = {
        field.name: getattr(flat, field.name)
        for field in fields(BisectionResult)
        if field.name not in ("status", "origin", "persistence", "departure")
    }
    for name in ("first_bad_step", "root_step", "faithful_until"):
        if kept[name] is not None and not 0 <= kept[name] < _LARGEST_STEP:
            notes = (*notes, f"{NAME}: {name} is no step; it is left out")
            kept[name] = None
    if flat.kind and flat.kind not in {kind.value for kind in FaultKind}:
        notes = (*notes, f"{NAME}: kind is none that is known; where the fault is, is left out")
    departure = flat.departure
    if departure is not None and not isinstance(departure.step, int):
        departure = None
    return (
        BisectionResult(
            **kept,
            status=status,
            origin=_origin(flat),
            persistence=_persistence(flat.persistence),
            departure=departure,
        ),
        notes,
    )


def log_fingerprint(steps: StepTable, until: int | None = None) -> dict[str, Any]:
    """What the rows up to a step are known by: ``rows``, ``last_step`` and a ``sha256``.

    Args:
        steps: the step log.
        until: the last step that matters; None takes all. Rows appended later change nothing.
    """
    rows = len(steps) if until is None else int(np.searchsorted(steps.step, until, side="right"))
    digest = hashlib.sha256()
    for name in _PRINTED:
        if name in steps:
            values = np.asarray(steps[name][:rows], dtype=np.float64)
            present = np.ascontiguousarray(steps.present(name)[:rows])
            values = np.where(np.isnan(values), np.nan, values)  # one NaN for all
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
            digest.update(present.tobytes())
    last = int(steps.step[rows - 1]) if rows else None
    return {"rows": rows, "last_step": last, "sha256": digest.hexdigest()}


def bisection_of(run: Run) -> tuple[BisectionResult | None, tuple[str, ...]]:
    """The bisection that lies in a run directory, where it still holds for the log.

    Returns:
        The result or None, and what the reader of a report must know, a clause each.
    """
    document = run.bisection
    if document is None:
        return None, ()
    version = document.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        return None, (f"{NAME} is of a newer version of this program; it is not used",)
    body = document.get("bisection")
    if not isinstance(body, Mapping):
        return None, (f"{NAME} holds no bisection; it is not used",)
    result, notes = bisection_from_json(body)
    if result is None:
        return None, notes
    log = document.get("log")
    if not isinstance(log, Mapping) or not _still_holds(log, run.steps):
        stale = f"{NAME} is of another state of this log; it is not used: bisect again"
        return None, (*notes, stale)
    return result, notes


def _still_holds(log: Mapping[str, Any], steps: StepTable) -> bool:
    last = log.get("last_step")
    if isinstance(last, int) and not isinstance(last, bool) and abs(last) < _LARGEST_STEP:
        return log_fingerprint(steps, last) == dict(log)
    return last is None and log.get("rows") == 0 and len(steps) == 0


# -- the fields, one by one ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Departed:
    step: int
    column: str = ""
    recorded: Any = None
    replayed: Any = None


@dataclass(frozen=True, kw_only=True)
class _Flat:
    """The JSON object's fields with their types; enums still as texts."""

    path: str = ""
    status: str = ""
    reason: str = ""
    first_bad_step: int | None = None
    bad: str = ""
    root_step: int | None = None
    kind: str = ""
    phase: str = ""
    operator: str = ""
    autograd_node: str = ""
    module: str = ""
    parameter: str = ""
    parameters: tuple[str, ...] = ()
    element: str = ""
    source_line: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    output: TensorFacts | None = None
    chain: tuple[ChainLink, ...] = ()
    summary: str = ""
    traceback: tuple[str, ...] = ()
    growth: Growth | None = None
    samples: tuple[int, ...] = ()
    samples_note: str = ""
    batch_size: int = 0
    rank: int | None = None
    bad_ranks: tuple[int, ...] = ()
    reduction: str = ""
    reproduces: bool | None = None
    replays: int = 0
    raised: bool = False
    terminated: bool = False
    persistence: str = ""
    damage_stayed: bool = False
    faithful_until: int | None = None
    departure: Departure | None = None
    compared: int = 0
    replayed_from: int | None = None
    replayed_until: int | None = None
    tolerance: float = 0.0
    cross_device: bool = False
    what_if: tuple[WhatIf, ...] = ()
    remedy: tuple[str, ...] = ()
    checkpoints: tuple[CheckpointVerdict, ...] = ()
    bad_tensors: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    capsule: str = ""
    capsule_bytes: int = 0
    next_command: str = ""
    notes: tuple[str, ...] = ()


def _read_fields(data: Mapping[str, Any]) -> tuple[_Flat, tuple[str, ...]]:
    """Every field that is of its type; a clause for each that is not."""
    good: dict[str, Any] = {}
    notes: list[str] = []
    for field in fields(_Flat):
        if data.get(field.name) is None:
            continue
        try:
            if field.name == "departure":
                good[field.name] = _departure(data[field.name])
                continue
            one = dataclass_from_json(_Flat, {field.name: data[field.name]})
        except FieldError as error:
            notes.append(f"{NAME}: {error}; it is left out")
        else:
            good[field.name] = getattr(one, field.name)
    return _Flat(**good), tuple(notes)


def _departure(value: Any) -> Departure:
    """A departure; its two values may be a number, a text or null."""
    if not isinstance(value, Mapping):
        raise FieldError("departure should be an object")
    found = dataclass_from_json(_Departed, value, "departure")
    return Departure(
        step=found.step,
        column=found.column,
        recorded=_cell(found.recorded),
        replayed=_cell(found.replayed),
    )


def _cell(value: Any) -> float | str | None:
    """A cell of a row: a NaN or Inf is spelled as text in JSON."""
    if value in ("nan", "inf", "-inf", "NaN", "Infinity", "-Infinity"):
        return float(value)
    return value if isinstance(value, int | float | str) else None


def _origin(flat: _Flat) -> Origin | None:
    if flat.kind not in {kind.value for kind in FaultKind}:
        return None
    values = {field.name: getattr(flat, field.name) for field in fields(Origin)}
    return Origin(**{**values, "kind": FaultKind(flat.kind)})


def _persistence(text: str) -> Persistence:
    known = {word.value: word for word in Persistence}
    return known.get(text, Persistence.UNKNOWN)
