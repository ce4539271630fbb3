"""Console lines of the ``MetricLogger`` of DETR, MAE, BEiT: ``loss: 6.5993 (6.5971)``.

The first number is the median of the last steps, the one in brackets the mean since the epoch
began. ``Epoch: [115]  [1298/1299]`` counts both from 0. A mean that turns nan while the median is
finite tells that some step since the row before was nan: that row is read as NaN, the rows after
it, whose mean remembers it, are not.
"""

from __future__ import annotations

import math
import re

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.line_cells import LineCells
from forensics.runlog.scanner.numbers import NUMBER, quick
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"Epoch: \[(?P<epoch>\d{1,6})\]\s+\[\s*(?P<iter>\d{1,12})/(?P<length>\d{1,12})\]"
    rb"\s+eta: (?P<rest>[^\n]*)"
)
_CELL = re.compile(
    rb"\s(lr|loss|grad_norm|loss_scale): (" + NUMBER + rb")(?: \((" + NUMBER + rb")\))?"
)
_COLUMN = {
    b"lr": "lr",
    b"loss": "loss",
    b"grad_norm": "grad_l2_pre_clip",
    b"loss_scale": "scaler_scale",
}

_CELLS = LineCells(_COLUMN, before=rb"\s")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Epoch: [0]  [10/99]  eta: … loss: median (mean)")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, means = Rows(source.log), _Means()
    for block in source.blocks():
        found = _RECORD.findall(block)
        if not found:
            continue
        if b"nan" not in block and b"inf" not in block:
            _take(rows, found)
            means.all_finite(int(found[-1][0]))
            continue
        for record in found:
            epoch, done, length = map(int, record[:3])
            cells = means.cells(epoch, _CELL.findall(record[3]))
            rows.add(epoch * length + done, {**cells, "epoch": float(epoch)})
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.MEDIAN, "grad_l2_pre_clip": Meaning.MEDIAN},
        notes=tuple(means.notes.values()),
    )
    return rows.table(metric_logger_text.name, facts, where=source.path)


def _take(rows: Rows, found: list[tuple[bytes, ...]]) -> None:
    """Append records whose means are all finite."""
    epochs, done, lengths, rest = (list(column) for column in zip(*found, strict=True))
    epoch = np.array(epochs, dtype=np.int64)
    step = epoch * np.array(lengths, dtype=np.int64) + np.array(done, dtype=np.int64)
    rows.extend({"step": step, "epoch": epoch, **_CELLS.columns(rest)})


class _Means:
    """Watches when the running mean of a metric turns non-finite within an epoch.

    Attributes:
        notes: what was put right or is in doubt, by column.
    """

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._epoch = -1
        self._finite: dict[str, bool] = {}

    def all_finite(self, epoch: int) -> None:
        """Rows up to one of this epoch have finite means."""
        self._epoch, self._finite = epoch, dict.fromkeys(_COLUMN.values(), True)

    def cells(self, epoch: int, found: list[tuple[bytes, bytes, bytes]]) -> dict[str, float | None]:
        """The cells of a row: medians, but NaN where the mean has just turned so."""
        if epoch != self._epoch:
            # The mean starts anew: an epoch that is seen from its second row on tells less.
            self._finite = {} if self._epoch < 0 else dict.fromkeys(_COLUMN.values(), True)
            self._epoch = epoch
        return {_COLUMN[name]: self._cell(_COLUMN[name], a, b) for name, a, b in found}

    def _cell(self, column: str, median: bytes, mean: bytes) -> float | None:
        value, average = quick(median), quick(mean) if mean else None
        if value is None or average is None or not math.isfinite(value):
            return value
        before, self._finite[column] = self._finite.get(column), math.isfinite(average)
        if math.isfinite(average) or before is False:
            return value
        if before is None:
            self.notes[column] = (
                f"the mean of {column} is non-finite from the first row on: when it was, within "
                "that epoch, cannot be told"
            )
            return value
        self.notes[column] = (
            f"{column} read as NaN in rows whose median is finite and whose mean turns "
            "non-finite: some step of them was"
        )
        return average


metric_logger_text = Importer(
    name="metric-logger-text",
    description="MetricLogger of DETR, MAE, BEiT: console lines of median (mean)",
    sniff=_sniff,
    read=_read,
)
