"""A run's history from Weights & Biases as JSON lines: ``_step``, ``_runtime``, metrics.

Non-finite values are the texts ``"NaN"`` and ``"Infinity"``. ``_step`` counts calls of the logger;
where a trainer logs its own step, that one is taken. The Hugging Face Trainer names its keys
``train/…``: what it skipped shows in its learning rate.
"""

from __future__ import annotations

from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.lr_skips import with_lr_skips
from forensics.runlog.scanner.records import RecordRows, json_object
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.scanner.summaries import is_summary
from forensics.runlog.steps import StepTable

_LEAVE_OUT = frozenset(("_timestamp", "_wandb", "_runtime"))
_HF_KEYS = (b'"train/global_step"', b'"train/learning_rate"')


def _sniff(head: Head) -> Match | None:
    record = json_object(head.first_line)
    if record is None or is_summary(head) or not {"_runtime", "_timestamp"} & record.keys():
        return None
    return Match(CERTAIN, "JSON lines with _runtime and _timestamp")


def _read(source: LogSource, reading: Reading) -> StepTable:
    leave_out = _LEAVE_OUT - set(reading.mapping.values())
    rows = RecordRows(source.log, reading, leave_out, source.size)
    for block in source.blocks():
        rows.add_lines(block)
    table = rows.table(wandb_history.name, LogFacts(), source.path)
    head = source.head().text
    if reading.mapping or not all(key in head for key in _HF_KEYS):
        return table
    table, rate = with_lr_skips(table)
    facts = LogFacts(step_base=1, loss_filtered=True, notes=(rate,) if rate else ())
    return replace(table, facts=facts)


wandb_history = Importer(
    name="wandb-history",
    description="Weights & Biases: a run's history as JSON lines",
    sniff=_sniff,
    read=_read,
    columns=True,
)
