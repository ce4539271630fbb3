"""modded-nanogpt's logs: ``step:1/6000 train_loss:11.0091 train_time:24179ms step_avg:nanms``.

The file begins with the whole source code. Newer versions print no training loss; ``step_avg`` is
NaN until ten steps are timed.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import LONG_HEAD, Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_COLUMNS = {
    "train_loss": "loss",
    "loss": "loss",
    "val_loss": "val_loss",
    "lr": "lr",
    "norm": "grad_l2_pre_clip",
    "grad_norm": "grad_l2_pre_clip",
}
_LAYOUT = Layout(
    start=rb"step:(?<![\w.]step:)(?P<step>\d{1,15})/\d{1,15}[ \t]+(?=\w{1,40}:)",
    gap=rb"[ \t]*",
    key=rb"[A-Za-z_]\w*",
    equals=rb":",
    value=rb"\S*",
    column=_COLUMNS.get,
    mark=b"step:",
)
_RECORD = re.compile(_LAYOUT.start)
_TOTAL = re.compile(rb"(?<![\w.])step:\d{1,15}/(\d{1,15})[ \t]")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as step:…/… train_loss:… train_time:…")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks():
        records.read(block)
    total = _TOTAL.search(source.head(LONG_HEAD).text)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST},
        planned_steps=int(total.group(1)) if total else None,
        unknown=("gradient norms", "learning rates", "the loss scale"),
    )
    return rows.table(modded_nanogpt.name, facts, where=source.path)


modded_nanogpt = Importer(
    name="modded-nanogpt",
    description="modded-nanogpt: step:…/… train_loss:… lines after the source code",
    sniff=_sniff,
    read=_read,
)
