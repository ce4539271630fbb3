"""torchtitan's console: ``step:  4  loss:  7.62585  grad_norm: 26.6250  memory: …``.

In colours unless they are taken away. Every rank may print the same step. The gradient norm is the
one before clipping.
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
    "validate_loss": "val_loss",
    "grad_norm": "grad_l2_pre_clip",
    "lr": "lr",
    "tps": "tokens_per_s",
    "wps": "tokens_per_s",
}
_LAYOUT = Layout(
    start=rb"step:(?<!\wstep:)(?<!validate step:)[ \t]{0,9}(?P<step>"
    + COUNT
    + rb")(?=,?[ \t]{1,9}loss:)",
    gap=rb",?[ \t]*",
    key=rb"[A-Za-z_]\w*",
    equals=rb":[ \t]*",
    value=rb"\S*",
    column=_COLUMNS.get,
    mark=b"step:",
)
_RECORD = re.compile(_LAYOUT.start)
_OURS = re.compile(_LAYOUT.start + rb"[^\n]{0,400}\b(?:memory|tps|mfu):")
_PLAIN = 0.7
"""Confidence in ``step: 4 loss: 7.6`` alone: others write that too, and mean the same."""
_VALIDATION = re.compile(
    rb"\bvalidate step:[ \t]{0,9}(?P<step>" + COUNT + rb")[ \t]+loss:[ \t]{0,9}(?P<val_loss>"
    rb"" + NUMBER + rb")"
)
_TOTAL = re.compile(rb"total steps (\d{1,15})\b")


def _sniff(head: Head) -> Match | None:
    if _OURS.search(head.text):
        return Match(CERTAIN, "lines such as step: …  loss: …  grad_norm: …  memory: …")
    if _RECORD.search(head.text):
        return Match(_PLAIN, "lines such as step: …  loss: …")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks():
        at = 0
        for match in _VALIDATION.finditer(block) if b"validate step" in block else ():
            records.read(block[at : match.start()])
            rows.match(_VALIDATION, match.group() + b"\n")
            at = match.end()
        records.read(block[at:])
    total = _TOTAL.search(source.head().text)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        planned_steps=int(total.group(1)) if total else None,
        unknown=("the loss scale",),
    )
    return rows.table(torchtitan.name, facts, where=source.path)


torchtitan = Importer(
    name="torchtitan",
    description="torchtitan: console lines, and any of step: N loss: X",
    sniff=_sniff,
    read=_read,
)
