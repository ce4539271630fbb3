"""Console lines of mmcv 1.x and mmengine: ``Epoch [1][5/31] … loss: 4.80, grad_norm: 2.1``.

Iterations restart in every epoch (``Epoch``) or do not (``Iter``); both count from 1. Loss and
gradient norm are means over the logging interval or a window of it, so that one bad step makes the
whole row nan.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, number
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"(?:Epoch|Iter)(?:\(train\))?\s+(?:\[(?P<epoch>\d{1,9})\])?"
    rb"\[\s*(?P<iter>\d{1,12})/(?P<length>\d{1,12})\](?P<rest>[^\n]*\bloss: [^\n]*)"
)
_CELL = re.compile(rb"[\s,](lr|loss|grad_norm|loss_scale): (" + NUMBER + rb")")
_COLUMN = {
    b"lr": "lr",
    b"loss": "loss",
    b"grad_norm": "grad_l2_pre_clip",
    b"loss_scale": "scaler_scale",
}
MEANINGS = {"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN, "lr": Meaning.LAST}


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Epoch [1][50/100] … loss: …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    planned = None
    for block in source.blocks():
        for match in _RECORD.finditer(block):
            epoch, done, length = match.group("epoch"), int(match["iter"]), int(match["length"])
            step = done if epoch is None else (max(int(epoch), 1) - 1) * length + done
            if step >= 2**62:
                continue
            planned = length if epoch is None else planned
            cells = {_COLUMN[name]: number(text) for name, text in _CELL.findall(match["rest"])}
            rows.add(step, {**cells, "epoch": None if epoch is None else float(epoch)})
    facts = LogFacts(step_base=1, meanings=MEANINGS, planned_steps=planned)
    return rows.table(openmmlab_text.name, facts, where=source.path)


openmmlab_text = Importer(
    name="openmmlab-text",
    description="mmcv 1.x and mmengine: console lines",
    sniff=_sniff,
    read=_read,
)
