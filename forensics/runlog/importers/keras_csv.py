"""What Keras' ``CSVLogger`` writes: ``epoch`` from 0, then its metrics in order of name.

Rows are epochs: losses are means over one. It is often called ``training.log``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.named_csv import header_of, numbers_in, read_named
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_NO_KERAS = ("step", "global_step", "_step", "iteration", "time")


def _sniff(head: Head) -> Match | None:
    names = header_of(head)
    plain = names[:1] == ["epoch"] and "loss" in names and not set(_NO_KERAS) & set(names)
    if not plain or names[1:] != sorted(names[1:]) or any("/" in name for name in names):
        return None
    epochs = numbers_in(head, 0)
    if any(one == other for one, other in pairwise(epochs)) or any(e % 1 for e in epochs):
        return None  # rows within an epoch
    return Match(LIKELY, "a CSV of epoch and loss, its other columns in order of name")


def _naming(names: Sequence[str]) -> dict[str, str]:
    chosen = {name: target for name, target in name_columns(names).items() if target != "epoch"}
    return {**chosen, "epoch": "step"}


def _read(source: LogSource, reading: Reading) -> StepTable:
    facts = LogFacts(
        interval=1,
        unit=PER_EPOCH,
        step_base=0,
        meanings={"loss": Meaning.MEAN, "val_loss": Meaning.MEAN},
        unknown=("what happened within an epoch",),
    )
    return read_named(source, reading, keras_csv.name, _naming, facts)


keras_csv = Importer(
    name="keras-csv",
    description="Keras CSVLogger: a row an epoch",
    sniff=_sniff,
    read=_read,
    columns=True,
)
