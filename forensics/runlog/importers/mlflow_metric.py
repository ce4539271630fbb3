"""A metric as MLflow keeps it on disk: ``1690000000000 2.5 10``: milliseconds, value, step.

Its file is called as the metric is, and lies in a folder ``metrics`` beside those of the others,
which are read with it. Where nobody gave a step, all are 0, and the values are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from forensics.errors import InputError
from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.metric_files import files_beside
from forensics.runlog.scanner.numbers import NUMBER, counts, floats
from forensics.runlog.scanner.rows import Rows, nothing_found
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import FloatArray, IntArray, StepTable

_POINT = re.compile(rb"(?m)^1\d{12} (" + NUMBER + rb") (\d{1,18})[ \t]*$")
_LOOKED_AT = 20
COUNTED = "no step was given to the metrics: their values are counted"

Series = tuple[IntArray, FloatArray]
"""Steps, and the value at each; rising, each once."""


def _sniff(head: Head) -> Match | None:
    lines = [line for line in head.lines[:_LOOKED_AT] if line.strip()]
    if not lines or not all(map(_POINT.match, lines)):
        return None
    return Match(CERTAIN, "lines of milliseconds, a value and a step")


def _read(source: LogSource, reading: Reading) -> StepTable:
    metrics: dict[str, Series] = {}
    counted, files = False, _columns(source.paths, reading.mapping)
    for path, column in files.items():
        steps, values = _points(path, source)
        if len(steps) > 1 and not steps.any():
            counted, steps = True, np.arange(len(steps))
        if len(steps):
            metrics[column] = _last_of_each(steps, values)
    if not metrics:
        raise _nothing(files, source)
    others = len(files) - len(source.paths)
    notes = [f"read with {others} other metric{'s' * (others != 1)} of the run"] if others else []
    facts = LogFacts(notes=tuple(notes + [COUNTED] * counted))
    rows = Rows(source.log)
    rows.extend(_side_by_side(metrics))
    return rows.table(mlflow_metric.name, facts, where=source.path)


def _nothing(files: Mapping[Path, str], source: LogSource) -> InputError:
    if files:
        return nothing_found(mlflow_metric.name, source.path)
    return InputError(
        "holds one metric of MLflow, and its name tells of no column of a training log",
        where=source.path,
        hint=f"--map loss={source.path.name} says that it is the loss",
    )


def _columns(paths: Iterable[Path], mapping: Mapping[str, str]) -> dict[Path, str]:
    """The files to read and the column of each: as the user maps them, else by their names."""
    mapped = {name.strip(): column for column, name in mapping.items()}
    files: dict[Path, str] = {}
    for path in paths:
        for file, column in files_beside(path).items():
            own = path if file == path.absolute() else file
            files[own] = mapped.get(file.name, column)
    wanted = {*USABLE, *mapping, "epoch"}
    return {file: column for file, column in files.items() if column in wanted}


def _points(path: Path, source: LogSource) -> Series:
    steps: list[bytes] = []
    values: list[bytes] = []
    for block in (source if source.paths == (path,) else LogSource((path,))).blocks():
        for value, step in _POINT.findall(block):
            steps.append(step)
            values.append(value)
    return counts(steps), floats(values)[0]


def _last_of_each(steps: IntArray, values: FloatArray) -> Series:
    """What was logged last at each step."""
    found, at = np.unique(steps[::-1], return_index=True)
    return found, values[::-1][at]


def _side_by_side(metrics: Mapping[str, Series]) -> dict[str, Any]:
    step = np.unique(np.concatenate([steps for steps, _ in metrics.values()]))
    columns: dict[str, Any] = {"step": step}
    for name, (steps, values) in metrics.items():
        at = np.searchsorted(step, steps)
        cells, present = np.full(len(step), np.nan), np.zeros(len(step), dtype=bool)
        cells[at], present[at] = values, True
        columns[name] = (cells, present)
    return columns


mlflow_metric = Importer(
    name="mlflow",
    description="MLflow: the files of a run's metrics, in its folder metrics/",
    sniff=_sniff,
    read=_read,
    columns=True,
)
