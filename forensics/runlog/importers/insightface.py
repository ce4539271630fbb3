"""Log of insightface: ``Loss 41.2   LearningRate 0.1   Epoch: 0   Global Step: 100   Fp16 …``.

The loss is a mean since the line before. The loss scale is printed without decimals: one that
prints as 0 is below a half, and read as a quarter.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER, count, number
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"\bLoss (?P<loss>"
    + NUMBER
    + rb")\s+(?:LearningRate (?P<lr>"
    + NUMBER
    + rb")\s+)?Epoch: (?P<epoch>\d{1,9})\s+Global Step: (?P<step>"
    + COUNT
    + rb")(?:\s+Fp16 Grad Scale:\s*(?P<scale>"
    + NUMBER
    + rb"))?"
)
_BELOW_HALF = 0.25


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Loss 41.2 LearningRate 0.1 Epoch: 0 Global Step: 100")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, rounded = Rows(source.log), False
    for block in source.blocks():
        for match in _RECORD.finditer(block):
            scale = number(match["scale"] or b"")
            if scale == 0:
                scale, rounded = _BELOW_HALF, True
            cells = {
                "loss": number(match["loss"]),
                "lr": number(match["lr"] or b""),
                "epoch": float(match["epoch"]),
                "scaler_scale": scale,
            }
            rows.add(count(match["step"]), cells)
    note = ("a loss scale that prints as 0 is below 0.5 and read as 0.25",)
    facts = LogFacts(
        meanings={"loss": Meaning.MEAN},
        notes=note if rounded else (),
        unknown=("gradient norms",),
    )
    return rows.table(insightface.name, facts, where=source.path)


insightface = Importer(
    name="insightface",
    description="insightface: training lines with Global Step",
    sniff=_sniff,
    read=_read,
)
