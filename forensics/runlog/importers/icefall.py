"""icefall's log: ``Epoch 1, batch 50, loss[loss=7.2, …], tot_loss[…], lr: …, grad_scale: …``.

The loss is the batch's own; batches count from 0 in every epoch, whose length is not told. Every
rank may write its own lines. A ``grad_scale`` that is small is warned of, and ends the run.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epoch_steps import EpochSteps
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, number
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_AT = rb"\bEpoch (?P<epoch>\d{1,9}), batch (?P<batch>\d{1,12}), (?:global_batch_idx: \d{1,15}, )?"
_TRAIN = (
    _AT + rb"(?:batch size: \d{1,9}, )?loss\[loss=(?P<loss>" + NUMBER + rb")(?P<rest>[^\n]{0,4000})"
)
_SMALL = rb"[gG]rad[_ ]scale is (?:too )?small(?:, exiting)?:? (?P<small>" + NUMBER + rb")"
_VALID = (
    rb"\bEpoch \d{1,9}, (?:batch \d{1,12}, )?(?:global_batch_idx: \d{1,15}, )?validation:? "
    rb"loss=(?P<val_loss>" + NUMBER + rb")"
)
_EVENT = re.compile(_TRAIN + rb"|" + _SMALL + rb"|" + _VALID)
_RECORD = re.compile(_TRAIN)
_WARNED = re.compile(_SMALL)
_CELL = re.compile(rb"[\s,](lr|grad_scale): (" + NUMBER + rb")")
_COLUMNS = {b"lr": "lr", b"grad_scale": "scaler_scale"}


def _sniff(head: Head) -> Match | None:
    if _RECORD.search(head.text):
        return Match(CERTAIN, "lines such as Epoch …, batch …, loss[loss=…]")
    if _WARNED.search(head.text):
        return Match(CERTAIN - 0.1, "warnings of a small grad_scale")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, epochs = Rows(source.log), EpochSteps(first=0)
    step, warned = -1, 0
    for block in source.blocks():
        for match in _EVENT.finditer(block):
            if match["small"] is not None:
                warned += 1  # after the batch that was logged last, at steps that are not told
                rows.add(step + warned, {"scaler_scale": number(match["small"])})
            elif match["val_loss"] is not None:
                rows.add(max(step, 0), {"val_loss": number(match["val_loss"])})
            else:
                step = epochs.step(int(match["epoch"]), int(match["batch"]))
                warned = 0
                cells = {_COLUMNS[n]: number(text) for n, text in _CELL.findall(match["rest"])}
                rows.add(step, {**cells, "loss": number(match["loss"])})
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.LAST},
        notes=("epochs are taken to end at the last batch that was logged",),
        unknown=("gradient norms",),
    )
    return rows.table(icefall.name, facts, where=source.path)


icefall = Importer(
    name="icefall",
    description="icefall: training log, and its warnings of a small grad_scale",
    sniff=_sniff,
    read=_read,
)
