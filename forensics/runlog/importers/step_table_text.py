"""Rows of cells that small trainers print: ``step 10/100 | loss 3.2 | norm 0.4 | lr 6e-04 | …``.

llm.c's console, build-nanogpt, nanochat and what was made of them. Steps count from 0 or 1. A
``(+nanz)`` beside a value says how unusual it is, and is NaN while that is not known.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.numbers import COUNT, NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_COLUMNS = {
    "loss": "loss",
    "train loss": "loss",
    "train_loss": "loss",
    "val loss": "val_loss",
    "validation loss": "val_loss",
    "norm": "grad_l2_pre_clip",
    "grad norm": "grad_l2_pre_clip",
    "grad_norm": "grad_l2_pre_clip",
    "gnorm": "grad_l2_pre_clip",
    "lr": "lr",
    "learning rate": "lr",
    "loss scale": "scaler_scale",
    "tok/sec": "tokens_per_s",
    "tok/s": "tokens_per_s",
}


def _column(name: str) -> str | None:
    return _COLUMNS.get(name.strip().lower())


_LAYOUT = Layout(
    start=rb"[sS](?i:tep)(?<!\w.{4}):?[ \t]+(?P<step>" + COUNT + rb")(?:[ \t]*/[ \t]*[\d,]{1,15})?"
    rb"(?:[ \t]*\([\d.]{1,9}[ \t]?%\))?[ \t]*(?=\|)",
    gap=rb"[ \t]*\|[ \t]*",
    key=rb"(?!(?i:step):?[ \t]+\d)[A-Za-z][\w /]*?",
    equals=rb"(?:[ \t]*[:=][ \t]*|[ \t]+)(?=" + NUMBER + rb")",
    value=rb"[^|\n]*",
    column=_column,
    mark=b"tep",
)
_RECORD = re.compile(
    _LAYOUT.start + rb"\|[ \t]*(?:(?:train|val|validation)[ _])?[lL]oss[ \t]*[:=]?[ \t]*"
    rb"(?>" + NUMBER + rb")(?![ \t]+[A-Za-z_]\w*[:=])"
)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN - 0.1, "lines such as step … | loss … | norm … | lr …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks():
        records.read(block)
    facts = LogFacts(
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        unknown=("the loss scale",),
    )
    return rows.table(step_table_text.name, facts, where=source.path)


step_table_text = Importer(
    name="step-table",
    description="llm.c's console, build-nanogpt, nanochat: step … | loss … | norm … lines",
    sniff=_sniff,
    read=_read,
)
