"""ESPnet's log: ``1epoch:train:1-100batch: iter_time=…, loss=…, grad_norm=…, loss_scale=…``.

Values are means over the batches of a line. ``The grad norm is nan. Skipping updating the model.``
has no step: it is counted for the next line. Batches are counted anew in each epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epoch_steps import EpochSteps
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.line_cells import Cells, LineCells
from forensics.runlog.scanner.near import in_turn, matches_near
from forensics.runlog.scanner.numbers import NUMBER, floats
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_TRAIN = re.compile(
    rb"epoch:train:(?P<first>\d{1,12})-(?P<last>\d{1,12})batch:(?P<cells>[^\n]{0,4000})"
)
_EPOCH = re.compile(rb"(?<!\w)\d{1,9}$")
"""What is written right before ``epoch:train:``."""
_SKIP = rb"The grad norm is (?P<norm>nan|-?inf)\. Skipping"
_RESULT = (
    rb"\b\d{1,9}epoch results: [^\n]{0,4000}?\[valid\][^\n]{0,4000}?\bloss=(?P<val_loss>"
    + NUMBER
    + rb")"
)
_BETWEEN = re.compile(_SKIP + rb"|" + _RESULT)
_NEEDLES = {b"The grad norm is": 0, b"epoch results: ": 9}
_CELLS = LineCells(
    {
        b"loss": "loss",
        b"grad_norm": "grad_l2_pre_clip",
        b"loss_scale": "scaler_scale",
        b"optim0_lr0": "lr",
        b"lr_0": "lr_0",
    },
    before=rb"[\s,]",
    equals=b"=",
)


def _sniff(head: Head) -> Match | None:
    skips = any(match["norm"] for match in matches_near(_BETWEEN, head.text, _NEEDLES))
    if not skips and next(_records(head.text), None) is None:
        return None
    return Match(CERTAIN, "lines such as 1epoch:train:1-100batch: … or of a skipped update")


def _records(text: bytes) -> Iterator[re.Match[bytes]]:
    return (match for match in _TRAIN.finditer(text) if _epoch(text, match.start()) is not None)


def _epoch(text: bytes, at: int) -> int | None:
    """The number of the epoch that ends somewhere; None where there is none."""
    found = _EPOCH.search(text[max(at - 10, 0) : at])
    return int(found.group()) if found else None


def _read(source: LogSource, reading: Reading) -> StepTable:
    log = _Log(Rows(source.log, size=source.size))
    for block in source.blocks():
        log.read(block)
    log.finish()
    notes = ["steps are batches, counted through the epochs"]
    if log.skipped:
        notes.append(f"{log.skipped:,} skipped updates bear no step: they lie between the records")
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN, "lr": Meaning.MEAN},
        notes=tuple(notes),
    )
    return log.rows.table(espnet.name, facts, where=source.path)


class _Log:
    """Gives the lines their steps, block by block.

    Attributes:
        skipped: updates that were skipped so far.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.skipped = 0
        self._epochs = EpochSteps()
        self._step, self._waiting = 0, 0

    def read(self, block: bytes) -> None:
        """Append the rows of a block of whole lines."""
        told: list[tuple[int, int, int]] = []
        texts: list[bytes] = []
        validations: list[bytes] = []
        between = matches_near(_BETWEEN, block, _NEEDLES)
        for match in in_turn(_records(block), between):
            if match.re is _TRAIN:
                first, last, cells = match.groups()
                told.append(self._trained(_epoch(block, match.start()) or 0, int(first), int(last)))
                texts.append(cells)
                validations.append(b"")
            elif match["norm"] is not None:
                self._waiting, self.skipped = self._waiting + 1, self.skipped + 1
            else:
                told.append((self._step, 0, 0))
                texts.append(b"")
                validations.append(match["val_loss"])
        if told:
            self._take(told, texts, validations)

    def finish(self) -> None:
        """Skips that no line follows."""
        if count := self._waiting:
            self.rows.add(self._step + count, {"skipped_steps": count, "covered_steps": count})

    def _trained(self, epoch: int, first: int, last: int) -> tuple[int, int, int]:
        """Step of a line of training, the steps that it covers, and those skipped of them."""
        self._step = self._epochs.step(epoch, last)
        covered = max(last - first + 1, 1)
        skipped, self._waiting = min(self._waiting, covered), 0
        return self._step, covered, skipped

    def _take(
        self, told: list[tuple[int, int, int]], texts: list[bytes], validations: list[bytes]
    ) -> None:
        step, covered, skipped = np.array(told, dtype=np.int64).T
        columns: dict[str, Any] = dict(_CELLS.columns(texts))
        rate, other = columns.get("lr"), columns.pop("lr_0", None)
        if other is not None:
            columns["lr"] = other if rate is None else _either(rate, other)
        columns |= {
            "covered_steps": (covered, covered > 0),
            "skipped_steps": (skipped, covered > 0),
        }
        if any(validations):
            columns["val_loss"] = floats(validations)
        self.rows.extend({"step": step, **columns})


def _either(one: Cells, other: Cells) -> Cells:
    """The cells of one column, and of another where it has none."""
    (values, there), (others, also) = one, other
    if there is None:
        return one
    there_too = np.ones(len(others), dtype=bool) if also is None else also
    return np.where(there, values, others), there | there_too


espnet = Importer(
    name="espnet",
    description="ESPnet: epoch:train:…batch lines and warnings of skipped updates",
    sniff=_sniff,
    read=_read,
)
