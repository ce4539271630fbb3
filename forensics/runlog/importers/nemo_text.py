"""What NeMo prints: ``… | global_step: 120 | reduced_train_loss: 1.233 | …``, or a progress bar.

``reduced_train_loss`` is the loss; the ``loss=nan`` of the bar is a value that nobody logged.
``global_step`` counts from 0. ``val_loss`` is repeated in every line until the next validation and
is taken where it changes.
"""

from __future__ import annotations

import re

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.line_cells import Columns, LineCells
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import BoolArray, FloatArray, StepTable

_NEEDLE = b"reduced_train_loss"
_COLUMNS = {
    b"global_step": "step",
    b"lr": "lr",
    b"reduced_train_loss": "loss",
    b"val_loss": "val_loss",
    b"grad_norm": "grad_l2_pre_clip",
    b"gradient_norm": "grad_l2_pre_clip",
    b"loss_scale": "scaler_scale",
}
_GLUED = re.compile(rb"(?<=[^\n])(?=Epoch \d{1,9}:[ \t]{1,9}\d{1,3}%)")
_PRINTED = LineCells(_COLUMNS, before=rb"[\s|]")
_BAR = LineCells(_COLUMNS, before=rb"[\s,\[]", equals=b"=")


def _sniff(head: Head) -> Match | None:
    at = head.text.find(_NEEDLE)
    if at < 0 or b"global_step" not in _line_at(head.text, at):
        return None
    return Match(CERTAIN, "lines with global_step and reduced_train_loss")


def _line_at(text: bytes, at: int) -> bytes:
    end = text.find(b"\n", at)
    return text[text.rfind(b"\n", 0, at) + 1 : len(text) if end < 0 else end]


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, validation = Rows(source.log), _Validation()
    for block in source.blocks():
        lines = [line for line in _lines(block) if _NEEDLE in line]
        if not lines:
            continue
        bar = _NEEDLE + b"=" in lines[0]
        columns = (_BAR if bar else _PRINTED).columns(lines)
        step, there = columns.pop("step", (np.full(len(lines), np.nan), None))
        keep = np.isfinite(step) & (step >= 0) & (step < 2.0**53)
        keep &= True if there is None else there
        if "val_loss" in columns:
            values, new = validation.fresh(*columns.pop("val_loss"))
            columns |= {"val_loss": (values, new)} if new.any() else {}
        rows.extend({"step": step[keep].astype(np.int64), **_at(columns, keep)})
    facts = LogFacts(step_base=0, meanings={"loss": Meaning.LAST})
    return rows.table(nemo_text.name, facts, where=source.path)


def _lines(block: bytes) -> list[bytes]:
    """The lines, and the states of a bar that were copied into one line."""
    if block.count(_NEEDLE) > block.count(b"\n") + 1:
        block = _GLUED.sub(b"\n", block)
    return block.split(b"\n")


def _at(columns: Columns, rows: BoolArray) -> Columns:
    return {
        name: (values[rows], None if there is None else there[rows])
        for name, (values, there) in columns.items()
    }


class _Validation:
    """Tells a validation loss that is new from one that is only repeated."""

    def __init__(self) -> None:
        self._last: float | None = None

    def fresh(self, values: FloatArray, there: BoolArray | None) -> tuple[FloatArray, BoolArray]:
        """The values with only those present that differ from the one before; never the first."""
        written = np.flatnonzero(there) if there is not None else np.arange(len(values))
        found = values[written]
        first = self._last is None
        before = np.concatenate(([np.nan if self._last is None else self._last], found[:-1]))
        changed = (found != before) & ~(np.isnan(found) & np.isnan(before))
        if first:
            changed[:1] = False
        if len(found):
            self._last = float(found[-1])
        new = np.zeros(len(values), dtype=bool)
        new[written[changed]] = True
        return np.where(new, values, np.nan), new


nemo_text = Importer(
    name="nemo",
    description="NeMo: progress lines and bars with reduced_train_loss",
    sniff=_sniff,
    read=_read,
)
