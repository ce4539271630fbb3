"""Lines that a training loop prints of itself, such as ``step 10 loss 2.1 lr 0.001``.

The reader of last resort. A line is a row where a number follows a name that is a loss; the other
names on it are read where they are columns of the step table. Overflow notes of DeepSpeed or Apex
between the lines are counted for the line that follows them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, PER_STEP, LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.coverage import usual_distance
from forensics.runlog.scanner.glued import Glue
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.overflow_notes import OverflowNotes, hints_of
from forensics.runlog.scanner.plain_prints import plain_prints
from forensics.runlog.scanner.printed_counts import Count, may_be_samples, numbered
from forensics.runlog.scanner.printed_lines import (
    KnownShapes,
    PrintedLine,
    begins_validation,
    epoch_heading,
    heads_validation,
    pieces,
    printed_line,
    shapes_of,
    step_heading,
)
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_STEPS, _EPOCHS, _LINES = "steps", "epochs", "lines"
_ENOUGH = 3
_DETAIL = 5
"""Lines that count nothing are read instead of one an epoch where they are so many times more."""


class _Row(NamedTuple):
    """A line of the loop.

    Attributes:
        shape: the line without its numbers.
        own: the counters on it.
        epoch: its own, else that of the heading above it.
        cells: what it tells.
        noted: what the overflow notes before it tell.
    """

    shape: bytes
    own: Count
    epoch: int | None
    cells: dict[str, float]
    noted: dict[str, Cell]

    @property
    def trains(self) -> bool:
        return "loss" in self.cells


def tells_of_training(head: Head) -> bool:
    """Are there lines of a training loop's own in the first part of a log?"""
    return bool(_shapes(head))


def _shapes(head: Head) -> frozenset[bytes]:
    return _shapes_in(head.text)


@lru_cache(maxsize=2)
def _shapes_in(text: bytes) -> frozenset[bytes]:
    if b"loss" not in text.lower():
        return frozenset()
    lines = (piece for piece in pieces(text) if isinstance(piece, bytes))
    return shapes_of(found for line in lines if (found := printed_line(line)) is not None)


def _sniff(head: Head) -> Match | None:
    if not _shapes(head):
        return None
    return Match(POSSIBLE - 0.05, "lines alike on which a number follows a loss's name")


def _read(source: LogSource, reading: Reading) -> StepTable:
    return read_lines(source, print_lines.name)


def read_lines(source: LogSource, name: str) -> StepTable:
    """Read a log of a loop's own lines, with the overflow notes between them.

    Args:
        source: the log.
        name: of the importer that reads it.
    """
    plain = _plain(source)
    samples = may_be_samples(source.head().text)
    if plain is not None:
        rows, names = plain
        unknown = () if "grad_l2_pre_clip" in names else ("gradient norms",)
        notes = (samples,) if samples else ()
        return rows.table(name, LogFacts(unknown=unknown, notes=notes), where=source.path)
    overflows = OverflowNotes()
    found = _told_apart(_without_stale(_with_pairs(list(_found(source, overflows)))))
    main = _main(found)
    steps, epochs, note, own = numbered(_counts([row for row in found if main(row)]))
    rows = Rows(source.log)
    _fill(rows, found, steps, main)
    if overflows.count and len(rows):
        rows.add((steps[-1] if steps else 0) + overflows.count, overflows.cells())
    there = {name for row in found for name in row.cells}
    facts = LogFacts(
        unit=PER_EPOCH if epochs else PER_STEP,
        interval=1 if epochs else None,
        epoch_count=own,
        notes=tuple(text for text in (note, "" if epochs else samples) if text),
        unknown=() if "grad_l2_pre_clip" in there else ("gradient norms",),
    )
    if overflows.total:
        facts = _with_overflows(facts, overflows, source.head().text)
    return rows.table(name, facts, where=source.path)


def _plain(source: LogSource) -> tuple[Rows, tuple[str, ...]] | None:
    """Rows and columns of a log of one print, as most are; None for any other log."""
    shapes = _shapes(source.head())
    lines = [piece for piece in pieces(source.head().text) if isinstance(piece, bytes)]
    prints = plain_prints(lines, *shapes) if len(shapes) == 1 else None
    if prints is None:
        return None
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        cells = prints.cells(block)
        if cells is None:
            return None
        rows.take(prints.names, cells, len(block))
    return (rows, prints.names) if len(rows) else None


def _found(source: LogSource, notes: OverflowNotes) -> Iterator[_Row]:
    """The lines of the loop, in order, each with the overflow notes before it."""
    known = _shapes(source.head())
    shapes, glue = KnownShapes(known), Glue(source.head().lines, known)
    above = _Headings()
    for block in source.blocks():
        for piece in glue.pieces(pieces(block)):
            if not isinstance(piece, bytes):
                notes.take(piece)
                continue
            line = printed_line(piece)
            shape = None if line is None else shapes.known(line.shape)
            if line is None or shape is None:
                above.see(piece)
                continue
            if line.shape != shape:
                line = line._replace(shape=shape)
            cells = above.cells_of(line)
            epoch = above.epoch if line.counted.epoch is None else line.counted.epoch
            noted = notes.cells() if "loss" in cells else {}
            own = line.counted if line.counted.at is not None else above.dated(line.counted)
            yield _Row(line.shape, own, epoch, cells, noted)


class _Headings:
    """What the lines between tell of those below them: the epoch, the step, that they validate.

    Lines below ``Validation at epoch 5`` are a validation's where they differ from those of the
    training in their words or in what they count to; a line below ``Test metrics:`` always is.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self._step: int | None = None
        self._validating = self._titled = False
        self._training: Counter[tuple[bytes, int | None]] = Counter()
        self._validation: set[tuple[bytes, int | None]] = set()

    def see(self, line: bytes) -> None:
        """A line that tells no loss."""
        told = epoch_heading(line)
        self.epoch = self.epoch if told is None else told
        step = step_heading(line)
        self._step = self._step if step is None else step
        if heads_validation(line):
            self._titled = True
        elif begins_validation(line):
            self._validating = self._training.total() >= _ENOUGH
        elif told is not None:
            self._validating = self._titled = False

    def dated(self, counted: Count) -> Count:
        """The counters of a line that counts no steps, with the step that it stands below."""
        return counted._replace(at=self._step)

    def cells_of(self, line: PrintedLine) -> dict[str, float]:
        """What a line tells, its loss as the validation's where it is one."""
        kind = (line.shape, line.counted.of)
        titled, self._titled = self._titled, False
        if self._validating and kind not in self._training:
            self._validation.add(kind)
        self._validating = False
        if titled or kind in self._validation:
            return {"val_loss": line.cells.get("loss", line.cells.get("val_loss", math.nan))}
        if line.trains:
            self._training[kind] += 1
        return line.cells


# -- which lines count, and what ----------------------------------------------------------------


def _main(found: Sequence[_Row]) -> Callable[[_Row], bool]:
    """Which lines of training make the rows.

    Those that count steps or batches, or of which there is one an epoch, whichever are more; lines
    that count nothing where there are hardly any others. Among lines of batches, a line an epoch
    sums up what they have told already, and a line without a count tells a part of it.
    """
    by_shape: dict[bytes, list[_Row]] = {}
    for row in found:
        if row.trains:
            by_shape.setdefault(row.shape, []).append(row)
    kinds = {shape: _kind(rows) for shape, rows in by_shape.items()}
    often = Counter[str]()
    for shape, rows in by_shape.items():
        often[kinds[shape]] += len(rows)
    chosen = max((_STEPS, _EPOCHS), key=lambda kind: often[kind])
    few = often[chosen] < min(_ENOUGH, often[_LINES])
    if few or (chosen == _EPOCHS and often[_LINES] > _DETAIL * often[_EPOCHS]):
        chosen = _LINES
    shapes = {shape for shape, kind in kinds.items() if kind == chosen}
    if chosen == _EPOCHS:
        shapes = {max(shapes, key=lambda shape: len(by_shape[shape]))}
    return lambda row: row.trains and row.shape in shapes


def _kind(rows: Sequence[_Row]) -> str:
    """What the lines of one shape count."""
    if all(row.own.at is not None for row in rows):
        return _STEPS
    epochs = [row.own.epoch for row in rows if row.own.epoch is not None]
    alone = len(epochs) == len(rows) > 1 and all(b > a for a, b in pairwise(epochs))
    return _EPOCHS if alone else _LINES


def _counts(rows: Sequence[_Row]) -> list[Count]:
    """The counters of the lines; one before the first heading is of the epoch before that."""
    first = next((row.epoch for row in rows if row.epoch is not None), None)
    before = None if first is None else first - 1
    return [row.own._replace(epoch=before if row.epoch is None else row.epoch) for row in rows]


def _told_apart(rows: list[_Row]) -> list[_Row]:
    """The rows, with the lines of validations that are worded as those of the training as such.

    They count to another end, and begin anew within an epoch, after those of the training.
    """
    ends: Counter[tuple[bytes, int | None]] = Counter()
    ends.update((row.shape, row.own.of) for row in rows if row.trains and row.own.of)
    validations: set[tuple[bytes, int | None]] = set()
    for before, row in pairwise(row for row in rows if row.trains and row.own.at is not None):
        kind, other = (row.shape, row.own.of), (before.shape, before.own.of)
        within = row.epoch is not None and row.epoch == before.epoch
        if within and row.shape == before.shape and kind != other and ends[kind] < ends[other]:
            validations.add(kind)
    return [
        row._replace(cells={"val_loss": row.cells["loss"]})
        if row.trains and (row.shape, row.own.of) in validations
        else row
        for row in rows
    ]


def _with_pairs(rows: list[_Row]) -> list[_Row]:
    """The rows, with ``Batch 4/203700`` as the epoch and the batch where it counts to no end.

    What follows the slash goes on from line to line, while what is before it stays.
    """
    by_shape: dict[bytes, list[Count]] = {}
    for row in rows:
        by_shape.setdefault(row.shape, []).append(row.own)
    pairs = {shape for shape, counts in by_shape.items() if _are_pairs(counts)}
    return [
        row._replace(own=(own := Count(row.own.at, row.own.of, None)), epoch=own.epoch)
        if row.shape in pairs
        else row
        for row in rows
    ]


def _are_pairs(counts: Sequence[Count]) -> bool:
    if any(count.epoch is not None or count.of is None for count in counts):
        return False
    ends: dict[int | None, list[int]] = {}
    for count in counts:
        ends.setdefault(count.at, []).append(count.of or 0)
    rising = all(of[-1] >= of[0] for of in ends.values())
    return rising and len({count.of for count in counts}) > max(len(ends), 2)


def _without_stale(rows: list[_Row]) -> list[_Row]:
    """The lines without bars at 0 where bars go on to their end.

    A bar that begins anew shows what the one before it ended with.
    """
    if not any(row.own.at is not None and row.own.at == row.own.of for row in rows):
        return rows
    return [row for i, row in enumerate(rows) if i == 0 or row.own.at != 0]


def _fill(
    rows: Rows, found: Sequence[_Row], steps: Sequence[int], main: Callable[[_Row], bool]
) -> None:
    """Add the rows, and the validations of the other lines at the step they come after."""
    numbers = iter(steps)
    every = usual_distance(np.asarray(steps)) == 1
    step: int | None = None
    skipped, noted = 0, dict[str, Cell]()
    for row in found:
        skipped += int(row.noted.get("skipped_steps") or 0)
        noted = {**noted, **row.noted}
        if main(row):
            before, step = step, next(numbers)
            first = step - skipped
            if skipped and every and first >= 0 and (before is None or first == before + 1):
                _add_skipped(rows, first, step, noted)  # no line is printed of a skipped step
                skipped, noted = 0, {}
            rows.add(
                step, {**noted, **({"skipped_steps": skipped} if skipped else {}), **row.cells}
            )
            skipped, noted = 0, {}
        elif step is not None and "val_loss" in row.cells:
            rows.add(step, {"val_loss": row.cells["val_loss"]})


def _add_skipped(rows: Rows, first: int, end: int, noted: Mapping[str, Cell]) -> None:
    """A row for each step from ``first`` to before ``end``: all of them were skipped."""
    for step in range(first, end):
        scale = {"scaler_scale": noted.get("scaler_scale")} if step == end - 1 else {}
        rows.add(step, {"skipped_steps": 1, **scale})


def _with_overflows(facts: LogFacts, notes: OverflowNotes, head: bytes) -> LogFacts:
    count = f"{notes.total:,} overflow{'s' * (notes.total != 1)} noted between the lines"
    held = f", of which {notes.unreduced:,} left the loss scale alone" if notes.unreduced else ""
    return replace(
        facts,
        notes=(*facts.notes, count + held),
        precision="fp16",
        scaler=hints_of(head),
    )


print_lines = Importer(
    name="print-lines",
    description="lines that a loop prints of itself: step 10 loss 2.1 lr 0.001, bars with loss=…",
    sniff=_sniff,
    read=_read,
    last_resort=True,
)
