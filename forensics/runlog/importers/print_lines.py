"""Lines that a training loop prints of itself, such as ``step 10 loss 2.1 lr 0.001``.

The reader of last resort. A line is a row where a number follows a name that is a loss; the other
names on it are read where they are columns of the step table. Overflow notes of DeepSpeed or Apex
between the lines are counted for the line that follows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, PER_STEP, LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.overflow_notes import OverflowNotes, hints_of
from forensics.runlog.scanner.printed_counts import Count, numbered
from forensics.runlog.scanner.printed_lines import (
    epoch_heading,
    pieces,
    printed_line,
    shapes_of,
)
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable


class _Row(NamedTuple):
    counted: Count
    cells: dict[str, float]
    noted: dict[str, Cell]


def tells_of_training(head: Head) -> bool:
    """Are there lines of a training loop's own in the first part of a log?"""
    return bool(_shapes(head))


def _shapes(head: Head) -> frozenset[bytes]:
    if b"loss" not in head.text.lower():
        return frozenset()
    texts = (piece for piece in pieces(head.text) if isinstance(piece, bytes))
    return shapes_of(found for text in texts if (found := printed_line(text)) is not None)


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
    notes = OverflowNotes()
    found = _without_stale(list(_found(source, notes)))
    train = [row for row in found if "loss" in row.cells]
    steps, epochs, note = numbered([row.counted for row in _counting(train)])
    rows = Rows(source.log)
    _fill(rows, found, steps, _kind(train))
    if notes.count and len(rows):
        rows.add((steps[-1] if steps else 0) + notes.count, notes.cells())
    there = {name for row in found for name in row.cells}
    facts = LogFacts(
        unit=PER_EPOCH if epochs else PER_STEP,
        interval=1 if epochs else None,
        notes=(note,) if note else (),
        unknown=() if "grad_l2_pre_clip" in there else ("gradient norms",),
    )
    if notes.total:
        facts = _with_overflows(facts, notes, source.head().text)
    return rows.table(name, facts, where=source.path)


def _found(source: LogSource, notes: OverflowNotes) -> Iterator[_Row]:
    """The lines of the loop, with the epoch of the heading above them where they tell none."""
    shapes = _shapes(source.head())
    heading: int | None = None
    for block in source.blocks():
        for piece in pieces(block):
            if not isinstance(piece, bytes):
                notes.take(piece)
                continue
            line = printed_line(piece)
            if line is None or (shapes and line.shape not in shapes):
                told = epoch_heading(piece)
                heading = heading if told is None else told
                continue
            counted = line.counted
            if counted.epoch is None and heading is not None:
                counted = counted._replace(epoch=heading)
            yield _Row(counted, line.cells, notes.cells() if line.trains else {})


# -- which lines count, and what ----------------------------------------------------------------


def _kind(rows: Sequence[_Row]) -> int:
    """What most lines of training count: 2 steps or batches, 1 epochs alone, 0 nothing."""
    often = Counter(_counts(row) for row in rows)
    return max(often, key=lambda kind: (often[kind], kind), default=0)


def _counts(row: _Row) -> int:
    return 2 if row.counted.at is not None else int(row.counted.epoch is not None)


def _counting(rows: Sequence[_Row]) -> list[_Row]:
    """The lines that make the rows: those that count what most do.

    Among lines of batches, a line an epoch sums up what they have told already. A line before the
    first heading of an epoch is of the epoch before that.
    """
    kind = _kind(rows)
    chosen = [row for row in rows if _counts(row) == kind]
    first = next((row.counted.epoch for row in chosen if row.counted.epoch is not None), None)
    if kind < 2 or first is None:
        return chosen
    return [
        row._replace(counted=row.counted._replace(epoch=first - 1))
        if row.counted.epoch is None
        else row
        for row in chosen
    ]


def _without_stale(rows: list[_Row]) -> list[_Row]:
    """The lines without bars at 0 where bars go on to their end.

    A bar that begins anew shows what the one before it ended with.
    """
    if not any(row.counted.at is not None and row.counted.at == row.counted.of for row in rows):
        return rows
    return [row for i, row in enumerate(rows) if i == 0 or row.counted.at != 0]


def _fill(rows: Rows, found: Sequence[_Row], steps: Sequence[int], kind: int) -> None:
    """Add the rows, and the validations of the other lines at the step they come after."""
    numbers = iter(steps)
    step: int | None = None
    skipped, noted = 0, dict[str, Cell]()
    for row in found:
        skipped += int(row.noted.get("skipped_steps") or 0)
        noted = {**noted, **row.noted}
        if "loss" in row.cells and _counts(row) == kind:
            step = next(numbers)
            rows.add(
                step, {**noted, **({"skipped_steps": skipped} if skipped else {}), **row.cells}
            )
            skipped, noted = 0, {}
        elif step is not None and "val_loss" in row.cells:
            rows.add(step, {"val_loss": row.cells["val_loss"]})


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
