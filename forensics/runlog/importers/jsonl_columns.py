"""Any JSON lines whose keys are called what loggers call them, or are mapped (``--map``)."""

from __future__ import annotations

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epochs import by_epoch, refuse_settings
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.records import RecordRows, flattened, json_object
from forensics.runlog.scanner.skip_totals import with_named_total
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.scanner.summaries import is_summary
from forensics.runlog.steps import StepTable

_LOOKED_AT = 50


def _sniff(head: Head) -> Match | None:
    if not head.first_line.lstrip().startswith(b"{") or is_summary(head):
        return None
    lines = head.lines[:_LOOKED_AT]
    records = [record for line in lines if (record := json_object(line)) is not None]
    if not records or len(records) * 2 < len(lines):
        return None
    keys = list(dict.fromkeys(key for record in records for key in flattened(record)))
    known = sorted({*name_columns(keys).values(), *loss_like(keys).values()} & USABLE)
    if known:
        return Match(POSSIBLE, f"JSON lines with {', '.join(known)}")
    return Match(0.05, "JSON lines")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = RecordRows(source.log, reading, size=source.size)
    for block in source.blocks():
        rows.add_lines(block)
    table = rows.table(jsonl_columns.name, LogFacts(), source.path)
    refuse_settings(table, source.path)
    return with_named_total(by_epoch(table) if "step" not in reading.mapping else table)


jsonl_columns = Importer(
    name="jsonl",
    description="any JSON lines with keys of a training log, by name or by --map",
    sniff=_sniff,
    read=_read,
    columns=True,
)
