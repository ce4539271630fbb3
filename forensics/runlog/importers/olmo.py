"""Console records of OLMo: ``[step=1/2500,epoch=0]`` and a line for each metric under it.

Steps count from 1; numbers have thousands separators.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, count, number
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_START = b"[step="
_RECORD = re.compile(
    rb"\[step=(?P<step>"
    + COUNT
    + rb")(?:/(?P<total>"
    + COUNT
    + rb"))?[^\]\n]*\](?P<rest>(?:\n[ \t]+[^\n=\[]+=[^\n]*)*)"
)
_CELL = re.compile(rb"\n[ \t]+([^\n=]+)=[ \t]*([^\s,]\S*)")
_COLUMNS = {
    "train/crossentropyloss": "loss",
    "train/ce loss": "loss",
    "optim/total_grad_norm": "grad_l2_pre_clip",
    "optim/total grad norm": "grad_l2_pre_clip",
    "optim/learning_rate_group0": "lr",
    "optim/lr (group 0)": "lr",
    "optim/lr": "lr",
    "throughput/device/tokens_per_second": "tokens_per_s",
    "throughput/device/tps": "tokens_per_s",
}


def _sniff(head: Head) -> Match | None:
    match = _RECORD.search(head.text)
    if match is None or not match.group("rest"):
        return None
    return Match(CERTAIN, "records such as [step=1/2500,epoch=0] with metrics under them")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    planned = None
    for block in source.blocks(before=_START):
        for match in _RECORD.finditer(block):
            total = match.group("total")
            planned = count(total) if total else planned
            rows.add(count(match.group("step")), _cells(match.group("rest")))
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        planned_steps=planned,
    )
    return rows.table(olmo.name, facts, where=source.path)


def _cells(text: bytes) -> dict[str, Cell]:
    """The metrics that the table has columns for."""
    found: dict[str, Cell] = {}
    for name, value in _CELL.findall(text):
        column = _COLUMNS.get(name.strip().decode("utf-8", "replace").lower())
        if column is not None:
            found.setdefault(column, number(value))
    return found


olmo = Importer(
    name="olmo",
    description="OLMo: console records of several lines",
    sniff=_sniff,
    read=_read,
)
