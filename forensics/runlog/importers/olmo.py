"""OLMo's and OLMo-core's console: ``[step=10/10000,epoch=0]``, then indented ``name=value`` lines.

Values have four significant digits, and separators for thousands.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import COUNT, count
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_WANTED = frozenset(("loss", "lr", "grad_l2_pre_clip", "val_loss", "tokens_per_s"))
_BEGINS = b"[step="


def _column(name: str) -> str | None:
    plain = name.lower()
    if plain in ("train/ce loss", "train/crossentropyloss"):
        return "loss"
    if plain in ("optim/lr (group 0)", "optim/learning_rate_group0", "optim/lr"):
        return "lr"
    target = canonical_name(name)
    return target if target in _WANTED and not plain.startswith("grad_") else None


_LAYOUT = Layout(
    start=rb"\[step=(?P<step>" + COUNT + rb")(?:/[\d,]{0,19}\d)?(?:,[ ]?epoch=(?P<epoch>\d{1,9}))?"
    rb"[^\]\n]{0,80}\]",
    gap=rb"\n[ \t]+",
    key=rb"[A-Za-z][\w/ ().-]*",
    equals=rb"=",
    value=rb"[^\n]*",
    column=_column,
    mark=b"[step=",
)
_RECORD = re.compile(_LAYOUT.start + rb"[ \t]*\n[ \t]+[A-Za-z][\w/ ().-]{0,80}=")
_TOTAL = re.compile(rb"\[step=[\d,]{1,20}/([\d,]{0,19}\d)\b")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "records such as [step=…/…], name=value lines below")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks(before=_BEGINS):
        records.read(block)
    total = _TOTAL.search(source.head().text)
    facts = LogFacts(
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        planned_steps=count(total.group(1)) if total else None,
        unknown=("the loss scale",),
    )
    return rows.table(olmo.name, facts, where=source.path)


olmo = Importer(
    name="olmo",
    description="OLMo and OLMo-core: console records of several lines",
    sniff=_sniff,
    read=_read,
)
