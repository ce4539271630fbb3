"""The console of Ultralytics YOLO: a table of one row an epoch, whose last cells are a bar.

``Epoch GPU_mem box_loss cls_loss dfl_loss Instances Size`` and ``1/100 2.37G 1.08 0.47 1.08 16
640: 100%|…``. YOLOv5 and YOLOv7 call the parts ``box``, ``obj``, ``cls``, YOLOv7 tells their
``total`` too. The bar redraws itself with means over the epoch so far: the last state counts.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, quick
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_HEADER = rb"[ \t]*Epoch[ \t]{1,12}(?:GPU|gpu)_mem(?P<parts>(?:[ \t]{1,20}[a-z]\w{1,20}){1,12})"
_ROW = (
    rb"[ \t]*(?P<epoch>\d{1,9})/(?P<last>\d{1,9})[ \t]{1,20}[\d.]{1,9}[GM]?"
    rb"(?P<cells>(?:[ \t]{1,20}" + NUMBER + rb"){1,12})[ \t]{1,20}\d{1,9}[ \t]{1,20}\d{1,6}:"
)
_LINE = re.compile(
    rb"(?m)^(?:" + _HEADER + rb"(?=[ \t]{1,20}(?:Instances|labels)\b)|" + _ROW + rb")"
)
_NOT_LOSSES = frozenset((b"labels", b"img_size"))


def _sniff(head: Head) -> Match | None:
    found = {match.lastgroup for match in _LINE.finditer(head.text)}
    if not {"parts", "cells"} <= found:
        return None
    return Match(CERTAIN, "a console's table of Epoch, GPU_mem and the parts of the loss")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    names: tuple[str, ...] = ()
    state: tuple[int, dict[str, Cell]] | None = None
    total = 0
    for block in source.blocks():
        for match in _LINE.finditer(block):
            if match["parts"] is not None:
                parts = [part for part in match["parts"].split() if part not in _NOT_LOSSES]
                names = tuple(part.decode() for part in parts)
                continue
            cells = match["cells"].split()
            if not names or len(cells) != len(names):
                continue
            epoch, total = int(match["epoch"]), int(match["last"])
            if state is not None and state[0] != epoch:
                rows.add(*state)
            state = epoch, _losses(names, cells)
    if state is not None:
        rows.add(*state)
    facts = LogFacts(
        interval=1,
        unit=PER_EPOCH,
        meanings={"loss": Meaning.MEAN},
        notes=("losses are the sums of their parts",) if len(names) > 1 else (),
        planned_steps=total or None,
        unknown=("gradient norms", "the loss scale", "what happened within an epoch"),
    )
    return rows.table(ultralytics_text.name, facts, where=source.path)


def _losses(names: tuple[str, ...], cells: list[bytes]) -> dict[str, Cell]:
    """The parts of a loss under their names, and their sum, which is trained on."""
    told = dict(zip(names, map(quick, cells), strict=True))
    whole = told.pop("total", None)
    values = [value for value in told.values() if value is not None]
    parts: dict[str, Cell] = {f"train/{name}": value for name, value in told.items()}
    return {"loss": sum(values) if whole is None else whole, **parts}


ultralytics_text = Importer(
    name="ultralytics-text",
    description="Ultralytics YOLO, YOLOv5, YOLOv7: the console's table of losses",
    sniff=_sniff,
    read=_read,
)
