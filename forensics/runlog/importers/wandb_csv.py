"""A chart or a table exported from Weights & Biases as CSV.

A chart has ``Step`` and for each run ``run - metric``, ``run - metric__MIN`` and
``run - metric__MAX``; a run's table has ``_step``, ``_runtime`` and the metrics. ``"NaN"`` and
``"Infinity"`` are written as texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from forensics.errors import InputError
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.named_csv import header_of, read_named
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_EXTREMES = ("__MIN", "__MAX")
_OF_RUNS = frozenset(("Name", "State", "Created", "Runtime"))
"""Columns of a project's table, which has one row a run."""
_CHART = re.compile(r"^(?P<run>.+) - (?P<metric>[^-]+)$")


def _sniff(head: Head) -> Match | None:
    names = header_of(head)
    if any(name.endswith(_EXTREMES) for name in names):
        return Match(CERTAIN, "columns named run - metric__MIN and __MAX")
    if set(names) >= _OF_RUNS:
        return Match(CERTAIN, "columns named Name, State, Created and Runtime")
    if {"_step", "_runtime"} <= set(names) or {"_step", "_timestamp"} <= set(names):
        return Match(CERTAIN, "columns named _step and _runtime")
    if names and names[0] in ("Step", "_step") and any(_CHART.match(n) for n in names[1:]):
        return Match(0.9, "a Step column beside run - metric")
    return None


def _naming(names: Sequence[str]) -> dict[str, str]:
    """The metrics of the first run; other runs' and extremes keep their own names."""
    metrics = [name for name in names if not name.endswith(_EXTREMES)]
    runs = [match.group("run") for name in metrics if (match := _CHART.match(name))]
    first = [n for n in metrics if not (m := _CHART.match(n)) or m.group("run") == runs[0]]
    chosen = name_columns(first)
    return chosen if "loss" in chosen.values() else {**chosen, **loss_like(first)}


def _read(source: LogSource, reading: Reading) -> StepTable:
    names = header_of(source.head())
    if set(names) >= _OF_RUNS:
        raise InputError(
            "is a table of runs, one row each, and not the log of one",
            where=source.path,
            hint="open a run and export one of its charts, or its history",
        )
    runs = {m.group("run") for n in names if (m := _CHART.match(n.replace("__MIN", "")))}
    runs = {run for run in runs if not run.endswith(_EXTREMES)}
    several = (f"several runs in one file ({len(runs)}): the first one is read",)
    facts = LogFacts(notes=several if len(runs) > 1 else ())
    return read_named(source, reading, wandb_csv.name, _naming, facts)


wandb_csv = Importer(
    name="wandb-csv",
    description="Weights & Biases: a chart or table exported as CSV",
    sniff=_sniff,
    read=_read,
    columns=True,
)
