"""DeepSpeed's own lines: overflow notes, and now and then the engine's counters.

``step=10, skipped=6, lr=[…]`` counts all steps, skipped ones included, and all skips so far. Where
two engines train (actor and critic), both print the same steps: the first one is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.importers.overflow_only import UNKNOWN, read_notes
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import LONG_HEAD, Head
from forensics.runlog.scanner.near import matches_near
from forensics.runlog.scanner.numbers import NUMBER, number, quick
from forensics.runlog.scanner.overflow_notes import NEEDLES, NOTE, TOTALS, OverflowNotes, hints_of
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.skip_totals import TOTAL, with_skip_totals
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_PIPELINE = rb"\bsteps: (?P<pipe>\d{1,15}) loss: (?P<loss>" + NUMBER + rb") (?:iter time|samples)"
_REDUCED = (
    rb"Reducing dynamic loss scale from (?P<from>" + NUMBER + rb") to (?P<to>" + NUMBER + rb")"
)
_PRINTED = rb"[lL]oss(?<!\w.{4})(?:: ?| ?= ?)(?P<printed>" + NUMBER + rb")(?![\w%])"
"""What the loop prints of a batch or a step, as ``Rank: 0, loss = 2.1`` or ``Loss: 2.1``."""
_ELSEWHERE = re.compile(
    rb"(?i)\brank:? ?[1-9]|\b(?:val|valid|validation|eval|evaluation|test|dev|best|average)\b"
)
"""In front of a printed loss: another rank's, or none of a step."""
_RECORD = re.compile(TOTALS + rb"|" + _PIPELINE)
_STEPPED = re.compile(TOTALS + rb"|" + _PIPELINE + rb"|Grad overflow on iteration:? ?\d")
_EVENT = re.compile(rb"|".join((TOTALS, _PIPELINE, _REDUCED, _PRINTED, NOTE)))
_NEEDLES = (
    {b"step=": 0, b"steps: ": 0, b"Reducing dynamic loss scale": 0}
    | dict.fromkeys((b"oss = ", b"oss: ", b"oss:", b"oss="), 1)
    | NEEDLES
)
_RATES = ("lr", *(f"lr_{group}" for group in range(1, 8)))
_OVERFLOW = re.compile(
    rb"(?:OVERFLOW|loss scale overflow)! (?:Rank \d{1,6} )?Skipping step\. Attempted"
    rb"|Overflow detected\. Skipping step\. Attempted|Grad overflow on iteration"
)


def _sniff(head: Head) -> Match | None:
    if _RECORD.search(head.text):
        return Match(CERTAIN - 0.03, "DeepSpeed's lines such as step=…, skipped=…, lr=[…]")
    if _OVERFLOW.search(head.text):
        return Match(CERTAIN - 0.04, "DeepSpeed's overflow notes")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    if not _STEPPED.search(source.head(LONG_HEAD).text):
        return read_notes(source, deepspeed.name)
    engine = _Engine(Rows(source.log, size=source.size))
    for block in source.blocks():
        for match in matches_near(_EVENT, block, _NEEDLES):
            engine.take(match)
    engine.finish()
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST, "lr": Meaning.LAST},
        precision="fp16" if engine.notes.total else "",
        scaler=hints_of(source.head(LONG_HEAD).text),
        notes=engine.told(),
    )
    table = engine.rows.table(deepspeed.name, facts, where=source.path)
    table = replace(table, earlier=tuple(map(_settled, table.earlier)))
    return _settled(table)


def _settled(table: StepTable) -> StepTable:
    table = with_skip_totals(table)
    lacks = [what for what in UNKNOWN if what != "learning rates" or not table.has("lr")]
    if table.has("loss"):
        lacks.remove("losses")
    facts = replace(table.facts or LogFacts(), unknown=tuple(lacks))
    return replace(table, facts=facts)


class _Engine:
    """The rows of one engine, and the notes between them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.notes = OverflowNotes()
        self._last: tuple[int, Mapping[str, Cell]] = (-1, {})
        self._iteration = -1
        self._at = 0
        self._exact: dict[str, Cell] = {}
        self._others = 0
        self._loss: float | None = None
        self._follows: bool | None = None

    def take(self, match: re.Match[bytes]) -> None:
        """One event of the log."""
        if match["engine_step"] is not None:
            self._record(int(match["engine_step"]), _cells(match))
        elif match["pipe"] is not None:
            self._flush()
            self._add(int(match["pipe"]), {"loss": number(match["loss"]), **self._noted()})
        elif match["printed"] is not None:
            start = match.string.rfind(b"\n", 0, match.start()) + 1
            if not _ELSEWHERE.search(match.string, start, match.start()):
                self._see(number(match["printed"]))
        elif match["from"] is not None:
            if self._exact:
                self._exact.setdefault("scaler_scale", number(match["from"]))
        elif match["iteration"] is not None:
            self._dated(int(match["iteration"]))
        elif self._exact:
            was = match["was"] or match["tried"]
            if was is not None:
                self._exact.setdefault("scaler_scale", number(was))
        else:
            self.notes.take(match)

    def finish(self) -> None:
        """What is still counted when the log ends."""
        self._flush()
        if self.notes.count:
            self._add(self._at + self.notes.count, self.notes.cells())

    def told(self) -> tuple[str, ...]:
        """Notes for the reader of the report."""
        notes: list[str] = []
        if self.notes.unreduced:
            count = f"{self.notes.unreduced:,} of {self.notes.total:,} overflows"
            notes.append(f"{count} left the loss scale alone (hysteresis)")
        if self._others:
            notes.append("two engines print the same steps; the first one is read")
        return tuple(notes)

    def _record(self, step: int, cells: Mapping[str, Cell]) -> None:
        self._flush()
        if step == self._last[0]:
            self._others += cells != self._last[1]
            self.notes.drop()
            return
        self._last = (step, cells)
        if noted := self._noted():
            cells = {**noted, **cells}
        if self._loss is not None:
            cells = {**cells, "loss": self._loss}
            self._loss = None
        self._add(step, cells)

    def _see(self, loss: float | None) -> None:
        """A printed loss: the last one before a record is kept, but a non-finite one stays.

        A loop that prints it after the engine's record, as the first one tells, tells of that step.
        """
        if self._follows is None:
            self._follows = self._last[0] >= 0
        if self._follows:
            self._add(self._at, {"loss": loss})
        elif self._loss is None or math.isfinite(self._loss):
            self._loss = loss

    def _noted(self) -> dict[str, Cell]:
        return self.notes.cells()

    def _dated(self, iteration: int) -> None:
        """An overflow whose step is told, 0-based; every rank tells it."""
        if iteration == self._iteration or self._iteration - 2 <= iteration < self._iteration:
            return
        self._flush()
        if self.notes.count and iteration > self._at:
            self._add(iteration, self.notes.cells())  # those before the first that is dated
        self._iteration = iteration
        self._exact = {"skipped_steps": 1}

    def _flush(self) -> None:
        if self._exact:
            self.notes.total += 1
            self._add(self._iteration + 1, self._exact)
            self._exact = {}

    def _add(self, step: int, cells: Mapping[str, Cell]) -> None:
        self.rows.add(step, cells)
        self._at = step


def _cells(match: re.Match[bytes]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {TOTAL: int(match["total"])}
    for name, rate in zip(_RATES, match["rates"].split(b","), strict=False):
        cells[name] = quick(rate.strip())
    return cells


deepspeed = Importer(
    name="deepspeed",
    description="DeepSpeed: overflow notes, step=…, skipped=… lines, pipeline losses",
    sniff=_sniff,
    read=_read,
)
