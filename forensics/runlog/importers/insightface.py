"""Log of insightface: ``Loss 41.2   LearningRate 0.1   Epoch: 0   Global Step: 100   Fp16 …``.

The loss is a mean since the line before. The loss scale is printed without decimals: one that
prints as 0 is below a half, and read as a quarter.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER
from forensics.runlog.scanner.rounded import restore_rounded_scale
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"Loss (?<!\wLoss )(?P<loss>"
    + NUMBER
    + rb")\s+(?:LearningRate (?P<lr>"
    + NUMBER
    + rb")\s+|)Epoch: (?P<epoch>\d{1,9})\s+Global Step: (?P<step>"
    + COUNT
    + rb")(?:\s+Fp16 Grad Scale:\s*(?P<scaler_scale>"
    + NUMBER
    + rb")|)"
)
_BELOW_HALF = 0.25


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Loss 41.2 LearningRate 0.1 Epoch: 0 Global Step: 100")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(meanings={"loss": Meaning.MEAN}, unknown=("gradient norms",))
    table = rows.table(insightface.name, facts, where=source.path)
    table, rounded = _settled(table)
    found = [_settled(old) for old in table.earlier]
    table = replace(table, earlier=tuple(old for old, _ in found))
    if rounded or any(was for _, was in found):
        note = "a loss scale that prints as 0 is below 0.5 and read as 0.25"
        table = replace(table, facts=replace(facts, notes=(note,)))
    return table


def _settled(table: StepTable) -> tuple[StepTable, bool]:
    """The table without scales of 0, and whether there was one."""
    table, note = restore_rounded_scale(table, _BELOW_HALF)
    return table, bool(note)


insightface = Importer(
    name="insightface",
    description="insightface: training lines with Global Step",
    sniff=_sniff,
    read=_read,
)
