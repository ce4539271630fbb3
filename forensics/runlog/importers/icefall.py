"""icefall's log: ``Epoch 1, batch 50, loss[loss=7.2, …], tot_loss[…], lr: …, grad_scale: …``.

The loss is the batch's own; batches count from 0 in every epoch, whose length is not told. Every
rank may write its own lines. A ``grad_scale`` that is small is warned of, and ends the run.
"""

from __future__ import annotations

import re

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epoch_steps import EpochSteps
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.line_cells import LineCells
from forensics.runlog.scanner.near import in_turn, matches_near
from forensics.runlog.scanner.numbers import NUMBER, floats
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_TRAIN = re.compile(
    rb"Epoch (?<!\wEpoch )(?P<epoch>\d{1,9}), batch (?P<batch>\d{1,12}), "
    rb"(?:global_batch_idx: \d{1,15}, |)(?:batch size: \d{1,9}, |)"
    rb"loss\[loss=(?P<loss>" + NUMBER + rb")(?P<rest>[^\n]{0,4000})"
)
_SMALL = rb"[gG]rad[_ ]scale is (?:too )?small(?:, exiting)?:? (?P<small>" + NUMBER + rb")"
_VALID = (
    rb"\bEpoch \d{1,9}, (?:batch \d{1,12}, )?(?:global_batch_idx: \d{1,15}, )?validation:? "
    rb"loss=(?P<val_loss>" + NUMBER + rb")"
)
_BETWEEN = re.compile(_SMALL + rb"|" + _VALID)
_NEEDLES = (b"scale is ", b"validation")
_WARNED = re.compile(_SMALL)
_CELLS = LineCells({b"lr": "lr", b"grad_scale": "scaler_scale"}, before=rb"[\s,]")


def _sniff(head: Head) -> Match | None:
    if _TRAIN.search(head.text):
        return Match(CERTAIN, "lines such as Epoch …, batch …, loss[loss=…]")
    if any(matches_near(_WARNED, head.text, _NEEDLES[:1])):
        return Match(CERTAIN - 0.1, "warnings of a small grad_scale")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    log = _Log(Rows(source.log, size=source.size))
    for block in source.blocks():
        log.read(block)
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.LAST},
        notes=("epochs are taken to end at the last batch that was logged",),
        unknown=("gradient norms",),
    )
    return log.rows.table(icefall.name, facts, where=source.path)


class _Log:
    """Gives the lines their steps, block by block."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._epochs = EpochSteps(first=0)
        self._step, self._warned, self._small = -1, 0, b""

    def read(self, block: bytes) -> None:
        """Append the rows of a block of whole lines."""
        steps: list[int] = []
        cells: list[tuple[bytes, bytes, bytes]] = []
        between = matches_near(_BETWEEN, block, _NEEDLES)
        for match in in_turn(_TRAIN.finditer(block), between):
            if match.re is _TRAIN:
                epoch, batch, loss, rest = match.groups()
                self._step = self._epochs.step(int(epoch), int(batch))
                self._warned = 0
                steps.append(self._step)
                cells.append((loss, rest, b""))
            elif match["small"] is not None:
                # After the batch that was logged last, at steps that nobody told; of every rank.
                self._warned += match["small"] != self._small
                self._small = match["small"]
                steps.append(self._step + self._warned)
                cells.append((b"", b" grad_scale: " + match["small"], b""))
            else:
                steps.append(max(self._step, 0))
                cells.append((b"", b"", match["val_loss"]))
        if steps:
            self._take(steps, cells)

    def _take(self, steps: list[int], cells: list[tuple[bytes, bytes, bytes]]) -> None:
        losses, rests, validation = zip(*cells, strict=True)
        columns = _CELLS.columns(rests)
        columns |= {n: floats(c) for n, c in (("loss", losses), ("val_loss", validation)) if any(c)}
        self.rows.extend({"step": np.array(steps, dtype=np.int64), **columns})


icefall = Importer(
    name="icefall",
    description="icefall: training log, and its warnings of a small grad_scale",
    sniff=_sniff,
    read=_read,
)
