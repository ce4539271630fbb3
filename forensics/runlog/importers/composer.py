"""Console records of Composer and LLM Foundry: ``[batch=10/4800]:`` and a line for each metric.

``Train loss/train/total: 2.3``, ``Train l2_norm/grad/global: 1.2``. Where the batch is counted
within an epoch, ``time/batch`` is the step; it counts from 0.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import COUNT, count, number
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"\[(?:epoch=\d+(?:/\d+)?\]\[)?batch=(?P<step>"
    + COUNT
    + rb")(?:/"
    + COUNT
    + rb")?\]:[ \t]*(?P<rest>(?:\n[ \t]+(?:Train|Eval) [^\n:]+:[^\n]*)*)"
)
_CELL = re.compile(rb"\n[ \t]+Train ([^\n:]+): *([^\s]+)")
_KEPT = frozenset(("loss", "lr", "grad_l2_pre_clip", "scaler_scale"))


def _sniff(head: Head) -> Match | None:
    match = _RECORD.search(head.text)
    if match is None or not match.group("rest"):
        return None
    return Match(CERTAIN, "records such as [batch=10/4800]: with Train metrics under them")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    for block in source.blocks(before=b"batch="):
        for match in _RECORD.finditer(block):
            metrics = dict(_CELL.findall(match.group("rest")))
            batch = number(metrics.get(b"time/batch", b""))
            known = batch is not None and 0 <= batch < 2**53
            step = int(batch) if known and batch is not None else count(match.group("step"))
            rows.add(step, _cells(metrics))
    facts = LogFacts(meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST})
    return rows.table(composer.name, facts, where=source.path)


def _cells(metrics: dict[bytes, bytes]) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    for name, value in metrics.items():
        column = canonical_name(name.decode("utf-8", "replace"))
        if column in _KEPT:
            found.setdefault(column or "", number(value))
    return found


composer = Importer(
    name="composer",
    description="Composer and LLM Foundry: console records of several lines",
    sniff=_sniff,
    read=_read,
)
