"""Console lines of mmcv 1.x and mmengine: ``Epoch [1][5/31] … loss: 4.80, grad_norm: 2.1``.

Iterations restart in every epoch (``Epoch``) or do not (``Iter``); both count from 1. Loss and
gradient norm are means over the logging interval or a window of it, so that one bad step makes the
whole row nan.
"""

from __future__ import annotations

import re

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.line_cells import LineCells
from forensics.runlog.scanner.numbers import floats
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"(?:Epoch|Iter)(?:\(train\))?\s+(?:\[(?P<epoch>\d{1,6})\])?"
    rb"\[\s*(?P<iter>\d{1,12})/(?P<length>\d{1,12})\](?P<rest>[^\n]*)"
)
_CELLS = LineCells(
    {
        b"lr": "lr",
        b"loss": "loss",
        b"grad_norm": "grad_l2_pre_clip",
        b"loss_scale": "scaler_scale",
    },
    before=rb"[\s,]",
)
MEANINGS = {"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN, "lr": Meaning.LAST}


def _sniff(head: Head) -> Match | None:
    if not any(b"loss: " in match["rest"] for match in _RECORD.finditer(head.text)):
        return None
    return Match(CERTAIN, "lines such as Epoch [1][50/100] … loss: …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, planned = Rows(source.log), None
    for block in source.blocks():
        found = [record for record in _RECORD.findall(block) if b"loss: " in record[3]]
        if not found:
            continue
        epochs, done, lengths, rest = (list(column) for column in zip(*found, strict=True))
        planned = int(lengths[-1]) if not epochs[-1] else planned
        within = [max(int(epoch or 1), 1) - 1 for epoch in epochs]
        step = np.array(within) * np.array(lengths, dtype=np.int64) + np.array(done, dtype=np.int64)
        columns = _CELLS.columns(rest)
        if "loss" in columns:
            rows.extend({"step": step, "epoch": floats(epochs), **columns})
    facts = LogFacts(step_base=1, meanings=MEANINGS, planned_steps=planned)
    return rows.table(openmmlab_text.name, facts, where=source.path)


openmmlab_text = Importer(
    name="openmmlab-text",
    description="mmcv 1.x and mmengine: console lines",
    sniff=_sniff,
    read=_read,
)
