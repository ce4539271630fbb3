"""Any CSV whose columns are called what loggers call them, or are mapped (``--map``)."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epochs import by_epoch, refuse_settings
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.named_csv import header_of, read_named
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.skip_totals import with_named_total
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable


def _sniff(head: Head) -> Match | None:
    names = header_of(head)
    if not names:
        return None
    known = sorted(set(_naming(names).values()) & USABLE)
    if known:
        return Match(POSSIBLE, f"a CSV with columns for {', '.join(known)}")
    return Match(0.05, "a CSV")


def _naming(names: Sequence[str]) -> dict[str, str]:
    chosen = name_columns(names)
    return chosen if "loss" in chosen.values() else {**chosen, **loss_like(names)}


def _read(source: LogSource, reading: Reading) -> StepTable:
    table = read_named(source, reading, csv_columns.name, _naming, LogFacts())
    refuse_settings(table, source.path)
    return with_named_total(by_epoch(table) if "step" not in reading.mapping else table)


csv_columns = Importer(
    name="csv",
    description="any CSV with columns of a training log, by name or by --map",
    sniff=_sniff,
    read=_read,
    columns=True,
)
