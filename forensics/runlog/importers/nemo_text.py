"""What NeMo prints: ``… | global_step: 120 | reduced_train_loss: 1.233 | …``, or a progress bar.

``reduced_train_loss`` is the loss; the ``loss=nan`` of the bar is a value that nobody logged.
``global_step`` counts from 0. ``val_loss`` is repeated in every line until the next validation and
is taken where it changes.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, number
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_NEEDLE = b"reduced_train_loss"
_CELL = re.compile(
    rb"\b(lr|global_step|reduced_train_loss|val_loss|grad_norm|loss_scale)\s*[:=]\s*("
    + NUMBER
    + rb")"
)
_COLUMN = {
    "lr": "lr",
    "reduced_train_loss": "loss",
    "grad_norm": "grad_l2_pre_clip",
    "loss_scale": "scaler_scale",
}


def _sniff(head: Head) -> Match | None:
    at = head.text.find(_NEEDLE)
    if at < 0 or b"global_step" not in _line_at(head.text, at):
        return None
    return Match(CERTAIN, "lines with global_step and reduced_train_loss")


def _line_at(text: bytes, at: int) -> bytes:
    end = text.find(b"\n", at)
    return text[text.rfind(b"\n", 0, at) + 1 : len(text) if end < 0 else end]


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    stale: float | None = None
    for block in source.blocks():
        for line in block.split(b"\n"):
            if _NEEDLE not in line:
                continue
            found = {name.decode(): number(text) for name, text in _CELL.findall(line)}
            step = found.get("global_step")
            if step is None or not 0 <= step < 2**53:
                continue
            cells: dict[str, Cell] = {c: found[n] for n, c in _COLUMN.items() if n in found}
            validation = found.get("val_loss")
            if validation is not None and validation != stale and len(rows):
                cells["val_loss"] = validation
            stale = validation if validation is not None else stale
            rows.add(int(step), cells)
    facts = LogFacts(step_base=0, meanings={"loss": Meaning.LAST})
    return rows.table(nemo_text.name, facts, where=source.path)


nemo_text = Importer(
    name="nemo",
    description="NeMo: progress lines and bars with reduced_train_loss",
    sniff=_sniff,
    read=_read,
)
