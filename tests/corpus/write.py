"""Writing a case as a run directory, so that the command line can be tried on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from forensics.runlog.activations import ActivationWriter
from forensics.runlog.params import STATISTICS, ParamWriter
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import StepTable
from tests.corpus.assemble import Sheet, as_text
from tests.corpus.case import Case
from tests.corpus.snapshots import MemoryActivations, MemoryParams


def write(case: Case, target: Path) -> Path:
    """Write the run's parts under a new directory; returns the directory."""
    target.mkdir(parents=True)
    run = case.run
    _write_table(run.steps, target / "steps.csv")
    if run.manifest is not None:
        text = json.dumps(run.manifest.to_json(), allow_nan=False, indent=1)
        (target / "run.json").write_text(text)
    if isinstance(run.params, MemoryParams):
        _write_params(run.params, target / "params")
    if isinstance(run.activations, MemoryActivations):
        _write_activations(run.activations, target / "activations")
    for rank, table in enumerate(run.ranks, start=1):
        (target / "ranks").mkdir(exist_ok=True)
        _write_table(table, target / "ranks" / f"rank-{rank:05d}.csv")
    for checkpoint in run.checkpoints:
        (target / "checkpoints").mkdir(exist_ok=True)
        path = target / "checkpoints" / checkpoint.path.name
        path.write_bytes(b"")
        path.with_suffix("").with_suffix(".health.json").write_text(json.dumps(checkpoint.health))
    return target


def _write_table(table: StepTable, path: Path) -> None:
    values, written = {}, {}
    for name in table:
        column = table.columns[name]
        texts = np.array(column.categories)[column.values] if column.categories else None
        values[name] = column.values if texts is None else texts
        written[name] = column.present
    for name in CANONICAL_NAMES:
        if name not in values:
            values[name] = np.zeros(len(table))
            written[name] = np.zeros(len(table), dtype=bool)
    path.write_text("\n".join(as_text(Sheet(values, written))) + "\n")


def _write_params(store: MemoryParams, directory: Path) -> None:
    with ParamWriter(directory) as writer:
        for row, step in enumerate(store.taken_at.tolist()):
            for kind, names in store.kinds.items():
                stats = {
                    s: store.data[(kind, s)][row] for s in STATISTICS if (kind, s) in store.data
                }
                writer.append(step, names, kind, stats)


def _write_activations(store: MemoryActivations, directory: Path) -> None:
    with ActivationWriter(directory) as writer:
        for row, step in enumerate(store.taken_at.tolist()):
            stats = {name: values[row] for name, values in store.data.items()}
            writer.append(step, store.module_names, stats)
