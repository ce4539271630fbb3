"""``results.csv`` of Ultralytics YOLO: a row an epoch, in three layouts.

Padded with blanks and counted from 0, padded and from 1, or compact with a ``time`` column. The
loss is in parts (box, cls, dfl …); their sum is what is trained on, and the sum of the validation
losses may be inf or nan while training is sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.named_csv import header_of, read_named
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import Column, StepTable, canonical_order

_FIXED = {"epoch": "step", "time": "time_s", "lr/pg0": "lr", "x/lr0": "lr", "lr/0": "lr"}
_PARTS = ("loss", "_om", "_oo")
"""How names of parts of the loss end; YOLOv10's are of one-to-many and one-to-one assignment."""


def _sniff(head: Head) -> Match | None:
    names = header_of(head)
    if names[:1] != ["epoch"] or not _parts_of("train/", names):
        return None
    if any(name.startswith(("metrics/", "lr/pg", "x/lr")) for name in names):
        return Match(CERTAIN, "a CSV of epoch, train/…_loss and metrics/… or lr/pg0")
    return None


def _parts_of(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(prefix) and name.endswith(_PARTS)]


def _naming(names: Sequence[str]) -> dict[str, str]:
    chosen = {name: _FIXED[name] for name in names if name in _FIXED}
    for name in names:
        group = name.removeprefix("lr/pg").removeprefix("x/lr")
        if group.isdecimal() and group != name and group != "0":
            chosen[name] = f"lr_{group}"
    # The parts keep their names: the readers of other logs would take the first for the whole.
    return chosen


def _read(source: LogSource, reading: Reading) -> StepTable:
    facts = LogFacts(
        interval=1,
        unit=PER_EPOCH,
        meanings={"loss": Meaning.MEAN, "val_loss": Meaning.MEAN},
        unknown=("gradient norms", "the loss scale", "what happened within an epoch"),
    )
    table = read_named(source, reading, ultralytics_csv.name, _naming, facts)
    base = int(table.step[0]) if len(table) and table.step[0] in (0, 1) else None
    summed = len(_parts_of("train/", table)) > 1
    for prefix, name in (("train/", "loss"), ("val/", "val_loss"), ("test/", "val_loss")):
        table = _with_sum(table, prefix, name)
    notes = ("losses are the sums of their parts (box, cls, dfl …)",) if summed else ()
    return replace(table, facts=replace(facts, step_base=base, notes=notes))


def _with_sum(table: StepTable, prefix: str, name: str) -> StepTable:
    """The table with the sum of the losses whose names begin so."""
    parts = _parts_of(prefix, table)
    if not parts or name in table:
        return table
    there = np.logical_and.reduce([table.present(part) for part in parts])
    with np.errstate(invalid="ignore"):
        total = np.sum([table[part] for part in parts], axis=0)
    columns = {**table.columns, name: Column(np.where(there, total, np.nan), there)}
    return replace(table, columns={n: columns[n] for n in canonical_order(columns)})


ultralytics_csv = Importer(
    name="ultralytics-csv",
    description="Ultralytics YOLO: results.csv",
    sniff=_sniff,
    read=_read,
    columns=True,
)
