"""Console records of Composer and LLM Foundry: ``[batch=10/4800]:`` and a line for each metric.

``Train loss/train/total: 2.3``, ``Train l2_norm/grad/global: 1.2``. Where the batch is counted
within an epoch, ``time/batch`` is the step; it counts from 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import COUNT, number
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_KEPT = frozenset(("loss", "lr", "grad_l2_pre_clip", "scaler_scale"))
_BATCHES = "batches"
"""Batches of the whole training; ``time/batch`` in the log."""


def _column(name: str) -> str | None:
    if name == "time/batch":
        return _BATCHES
    target = canonical_name(name)
    return target if target in _KEPT else None


_LAYOUT = Layout(
    start=rb"\[(?:epoch=\d{1,9}(?:/\d{1,9}|)\]\[|)batch=(?P<step>"
    + COUNT
    + rb")(?:/"
    + COUNT
    + rb"|)\]:[ \t]*",
    gap=rb"(?:\n[ \t]+Eval [^\n:]+:[^\n]*)*\n[ \t]+Train ",
    key=rb"[^\n:]+",
    equals=rb": *",
    value=rb"[^\n]*",
    column=_column,
    mark=b"batch=",
)
_RECORD = re.compile(_LAYOUT.start + rb"\n[ \t]+(?:Train|Eval) [^\n:]+:")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "records such as [batch=10/4800]: with Train metrics under them")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = _ByBatch(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks(before=b"batch="):
        records.read(block)
    facts = LogFacts(meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST})
    return rows.table(composer.name, facts, where=source.path)


class _ByBatch(Rows):
    """Rows whose step is the batch of the whole training, where a record has it."""

    def add(self, step: int, cells: Mapping[str, Cell]) -> None:
        """Append one row."""
        batch = cells.get(_BATCHES)
        kept = {name: cell for name, cell in cells.items() if name != _BATCHES}
        known = isinstance(batch, float) and 0 <= batch < 2**53
        super().add(int(batch) if known and isinstance(batch, float) else step, kept)

    def take(self, names: tuple[str, ...], found: Sequence[tuple[bytes, ...]], size: int) -> int:
        """Append cells that were found in a block."""
        if _BATCHES not in names:
            return super().take(names, found, size)
        at, to = names.index(_BATCHES), names.index("step")
        kept = [i for i in range(len(names)) if i not in (at, to)]
        rows = [(_batch(cells[at]) or cells[to], *[cells[i] for i in kept]) for cells in found]
        return super().take(("step", *[names[i] for i in kept]), rows, size)


def _batch(cell: bytes) -> bytes:
    """A count of batches as text; empty where it is none."""
    if len(cell) < 16 and cell.isdigit():
        return cell
    value = number(cell)
    return b"%d" % value if value is not None and 0 <= value < 2**53 else b""


composer = Importer(
    name="composer",
    description="Composer and LLM Foundry: console records of several lines",
    sniff=_sniff,
    read=_read,
)
