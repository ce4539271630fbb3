"""ESPnet's log: ``1epoch:train:1-100batch: iter_time=…, loss=…, grad_norm=…, loss_scale=…``.

Values are means over the batches of a line. ``The grad norm is nan. Skipping updating the model.``
has no step: it is counted for the next line. Batches are counted anew in each epoch.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epoch_steps import EpochSteps
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, number
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_TRAIN = (
    rb"\b(?P<epoch>\d{1,9})epoch:train:(?P<first>\d{1,12})-(?P<last>\d{1,12})batch:"
    rb"(?P<cells>[^\n]{0,4000})"
)
_SKIP = rb"The grad norm is (?P<norm>nan|-?inf)\. Skipping"
_RESULT = (
    rb"\b\d{1,9}epoch results: [^\n]{0,4000}?\[valid\][^\n]{0,4000}?\bloss=(?P<val_loss>"
    + NUMBER
    + rb")"
)
_EVENT = re.compile(_TRAIN + rb"|" + _SKIP + rb"|" + _RESULT)
_RECORD = re.compile(_TRAIN + rb"|" + _SKIP)
_CELL = re.compile(rb"[\s,](loss|grad_norm|loss_scale|optim0_lr0|lr_0)=(" + NUMBER + rb")")
_COLUMNS = {
    b"loss": "loss",
    b"grad_norm": "grad_l2_pre_clip",
    b"loss_scale": "scaler_scale",
    b"optim0_lr0": "lr",
    b"lr_0": "lr",
}


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as 1epoch:train:1-100batch: … or of a skipped update")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, epochs = Rows(source.log), EpochSteps()
    waiting, step, total = 0, 0, 0
    for block in source.blocks():
        for match in _EVENT.finditer(block):
            if match["norm"] is not None:
                waiting, total = waiting + 1, total + 1
            elif match["val_loss"] is not None:
                rows.add(step, {"val_loss": number(match["val_loss"])})
            else:
                step = epochs.step(int(match["epoch"]), int(match["last"]))
                covered = max(int(match["last"]) - int(match["first"]) + 1, 1)
                skipped = min(waiting, covered)
                told = {"covered_steps": covered, "skipped_steps": skipped}
                rows.add(step, {**_cells(match["cells"]), **told})
                waiting = 0
    if waiting:  # the log ends before the next line
        rows.add(step + waiting, {"skipped_steps": waiting, "covered_steps": waiting})
    notes = ["steps are batches, counted through the epochs"]
    if total:
        notes.append(f"{total:,} skipped updates bear no step: they lie between the records")
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN, "lr": Meaning.MEAN},
        notes=tuple(notes),
    )
    return rows.table(espnet.name, facts, where=source.path)


def _cells(text: bytes) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name, value in _CELL.findall(text):
        cells.setdefault(_COLUMNS[name], number(value))
    return cells


espnet = Importer(
    name="espnet",
    description="ESPnet: epoch:train:…batch lines and warnings of skipped updates",
    sniff=_sniff,
    read=_read,
)
