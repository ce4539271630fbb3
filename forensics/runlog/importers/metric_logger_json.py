"""``log.txt`` of DETR, MAE, BEiT: a JSON line an epoch, ``train_loss`` and ``test_loss``.

Values are means over the epoch.
"""

from __future__ import annotations

from dataclasses import replace

from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import RecordRows, json_object, records_in
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RENAMED = {"epoch": "step", "train_loss": "loss", "train_lr": "lr", "test_loss": "val_loss"}
_ALSO = {"train_grad_norm": "grad_l2_pre_clip", "train_loss_scale": "scaler_scale"}


def _sniff(head: Head) -> Match | None:
    record = json_object(head.first_line)
    if record is None or not {"train_loss", "train_lr", "epoch"} <= record.keys():
        return None
    if "step" in record or "_step" in record:
        return None
    return Match(LIKELY, "JSON lines with train_loss, train_lr and epoch")


def _read(source: LogSource, reading: Reading) -> StepTable:
    mapping = {target: name for name, target in (_RENAMED | _ALSO).items()}
    rows = RecordRows(source.log, replace(reading, mapping={}))
    target = {name: column for column, name in {**mapping, **reading.mapping}.items()}
    for block in source.blocks():
        if not rows.add_columns(block, target):
            rows.add_all([_renamed(record, target) for record in records_in(block, source.log)])
    facts = LogFacts(
        interval=1,
        unit=PER_EPOCH,
        step_base=0,
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN, "lr": Meaning.MEAN},
        unknown=("what happened within an epoch",),
    )
    return rows.table(metric_logger_json.name, facts, source.path)


def _renamed(record: dict[str, object], target: dict[str, str]) -> dict[str, object]:
    """A record with the columns' names for its own."""
    return {target.get(name, name): value for name, value in record.items()}


metric_logger_json = Importer(
    name="metric-logger-json",
    description="MetricLogger of DETR, MAE, BEiT: log.txt, a JSON line an epoch",
    sniff=_sniff,
    read=_read,
    columns=True,
)
