"""One scalar downloaded from TensorBoard's page: ``Wall time,Step,Value``, or its JSON.

Which scalar it is stands in the name of the file alone (``run-.-tag-train_loss.csv``); ``--map
loss=Value`` says it otherwise. Several files joined are several scalars of one run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.errors import InputError
from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.csv_reader.table import read_table
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.joining import joined_columns
from forensics.runlog.scanner.named_csv import header_of
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.rows import finished
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_HEADER = ["Wall time", "Step", "Value"]
_POINTS = re.compile(rb"\s*\[\s*\[\s*1\d{9}(?:\.\d+)?\s*,\s*\d+\s*,\s*[-+\w.\"]+\s*\]\s*[,\]]")
"""Seconds since 1970, a step, a value."""
_TAG = re.compile(r"tag-(?P<tag>.+?)(?: ?\(\d+\))?\.(?:csv|json)(?:\.gz|\.zst)?$")
_TIME = "wall time"
_LARGEST = 16 << 20


def _sniff(head: Head) -> Match | None:
    if _POINTS.match(head.raw):
        return Match(CERTAIN, "a JSON list of wall time, step and value")
    if header_of(head) == _HEADER:
        return Match(CERTAIN, "a CSV of Wall time, Step and Value")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    tables = [_table(path, source, reading) for path in source.paths]
    for table in tables:
        for repair in table.repairs:
            source.log.take(repair)
    return finished(joined_columns(tables), tensorboard_scalar.name, LogFacts(), source.log)


def _table(path: Path, source: LogSource, reading: Reading) -> StepTable:
    target = _target(path, reading.mapping)
    one = LogSource((path,))
    if not _POINTS.match(one.head().raw):
        table = read_table(path, lambda names: _naming(names, target))
        # Of scalars of one step, the time of day alone would contradict each other.
        return replace(table, columns={n: c for n, c in table.columns.items() if n != _TIME})
    rows = RecordRows(one.log, Reading())
    for point in _points(one):
        rows.add({"step": point[1], target: point[2]})
    return rows.table(tensorboard_scalar.name, LogFacts(), path)


def _naming(names: Sequence[str], target: str) -> dict[str, str]:
    return dict(zip(names, (_TIME, "step", target), strict=True)) if len(names) == 3 else {}


def _points(source: LogSource) -> list[list[Any]]:
    try:
        found = json.loads(source.whole(_LARGEST))
    except (ValueError, RecursionError):
        return []
    return [point for point in found if isinstance(point, list) and len(point) == 3]


def _target(path: Path, mapping: Mapping[str, str]) -> str:
    """The column that the values are: as the user says, or by the file's name."""
    for column, name in mapping.items():
        if name.strip() == _HEADER[2]:
            return column
    match = _TAG.search(path.name)
    target = canonical_name(match.group("tag")) if match else None
    if target is None or target not in USABLE:
        raise InputError(
            "holds one scalar of TensorBoard and does not say which",
            where=path,
            hint="--map loss=Value says that it is the loss; the event file has all scalars",
        )
    return target


tensorboard_scalar = Importer(
    name="tensorboard-scalar",
    description="TensorBoard: one scalar downloaded as CSV or JSON",
    sniff=_sniff,
    read=_read,
    columns=True,
)
