"""Console lines of the ``MetricLogger`` of DETR, MAE, BEiT: ``loss: 6.5993 (6.5971)``.

The first number is the median of the last steps, the one in brackets the mean since the epoch
began. ``Epoch: [115]  [1298/1299]`` counts both from 0. A mean that turns nan while the median is
finite tells that some step since the row before was nan: that row is read as NaN, the rows after
it, whose mean remembers it, are not.
"""

from __future__ import annotations

import math
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
    rb"Epoch: \[(?P<epoch>\d{1,9})\]\s+\[\s*(?P<iter>\d{1,12})/(?P<length>\d{1,12})\]"
    rb"(?P<rest>[^\n]*\beta: [^\n]*)"
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


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Epoch: [0]  [10/99]  eta: … loss: median (mean)")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, means = Rows(source.log), _Means()
    for block in source.blocks():
        for match in _RECORD.finditer(block):
            epoch, done, length = (int(match[name]) for name in ("epoch", "iter", "length"))
            step = epoch * length + done
            if step < 2**62:
                cells = means.cells(epoch, _CELL.findall(match["rest"]))
                rows.add(step, {**cells, "epoch": float(epoch)})
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.MEDIAN, "grad_l2_pre_clip": Meaning.MEDIAN},
        notes=tuple(means.notes.values()),
    )
    return rows.table(metric_logger_text.name, facts, where=source.path)


class _Means:
    """Watches when the running mean of a metric turns non-finite within an epoch.

    Attributes:
        notes: what was put right or is in doubt, by column.
    """

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self._epoch = -1
        self._finite: dict[str, bool] = {}

    def cells(self, epoch: int, found: list[tuple[bytes, bytes, bytes]]) -> dict[str, float | None]:
        """The cells of a row: medians, but NaN where the mean has just turned so."""
        if epoch != self._epoch:
            # The mean starts anew: an epoch that is seen from its second row on tells less.
            self._finite = {} if self._epoch < 0 else dict.fromkeys(_COLUMN.values(), True)
            self._epoch = epoch
        return {_COLUMN[name]: self._cell(_COLUMN[name], a, b) for name, a, b in found}

    def _cell(self, column: str, median: bytes, mean: bytes) -> float | None:
        value, average = number(median), number(mean) if mean else None
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
