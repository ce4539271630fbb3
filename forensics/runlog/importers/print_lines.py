"""Lines that a training loop prints of itself, such as ``step 10 loss 2.1 lr 0.001``.

The reader of last resort. A line is a row where a number follows a name that is a loss; the other
names on it are read where they are columns of the step table. Prose is told apart by its shape:
lines that a program prints are alike but for their numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import PER_EPOCH, PER_STEP, LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import NUMBER, count, number
from forensics.runlog.scanner.printed_counts import Count, numbered
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_WORD = rb"[A-Za-z][\w/.]{0,40}"
_PAIR = re.compile(
    rb"(?<![\w./'\"])(" + _WORD + rb"(?:[ ]" + _WORD + rb")?)"
    rb"[ \t]{0,4}(?:[:=][ \t]{0,4}|[ \t])(" + NUMBER + rb")(?![\w.'\"])"
)
_AT = re.compile(
    rb"(?i)(?<![a-z])(?:steps?|iter(?:ation)?s?|it|batch|update)[ \t:=#\[(]{1,6}"
    rb"(\d{1,12})(?:[ \t]{0,2}/[ \t]{0,2}(\d{1,12}))?(?![\w.])"
)
_OF = re.compile(rb"[\[(][ \t]{0,6}(\d{1,12})/(\d{1,12})|(?<=[| ])(\d{1,12})/(\d{1,12}) ?\[")
_EPOCH = re.compile(rb"(?i)(?<![a-z])(?:epoch|ep)[ \t:=#\[(]{1,6}(\d{1,9})(?![\w.])")
_RATE = re.compile(rb"[\d:?]{1,12}<[\d:?]{1,12},[ \t]{0,3}[\d.?]{1,12} ?(?:\w{1,9}/s|s/\w{1,9})")
_BAR = re.compile(rb"\|[^|\n]{0,200}\|")
_FIGURE = re.compile(NUMBER)
_KEPT = frozenset(
    ("loss", "val_loss", "lr", "grad_l2_pre_clip", "grad_l2_post_clip", "scaler_scale")
)
_FEWEST = 3
"""Lines of one shape that make a log, where they count something."""
_FEWEST_UNCOUNTED = 10
"""The same where nothing on them counts."""
_LONGEST = 1000
"""Bytes of a line; longer ones are no print of a training loop."""


class _Line(NamedTuple):
    shape: bytes
    counted: Count
    cells: dict[str, float]


def _line(line: bytes) -> _Line | None:
    """What a line tells, or None where it tells no training loss."""
    if len(line) > _LONGEST or b"loss" not in line.lower():
        return None
    cells = _cells(line)
    if "loss" not in cells:
        return None
    shape = _FIGURE.sub(b"#", _BAR.sub(b"|", _RATE.sub(b"", line)))
    return _Line(b"".join(shape.split()), _count(line), cells)


def _cells(line: bytes) -> dict[str, float]:
    """Column → number, for the names on a line that are columns; the first of each counts."""
    cells: dict[str, float] = {}
    others: dict[str, float] = {}
    for text, figure in _PAIR.findall(line):
        value = number(figure)
        if value is None:
            continue
        name = text.decode("ascii", errors="replace")
        column = canonical_name(name) or canonical_name(name.rpartition(" ")[2])
        if column in _KEPT:
            cells.setdefault(column, value)
        elif column is None:
            others.setdefault(name, value)
    if "loss" not in cells:
        cells.update((column, others[name]) for name, column in loss_like(list(others)).items())
    return cells


def _count(line: bytes) -> Count:
    epoch = _EPOCH.search(line)
    rest = line if epoch is None else line[: epoch.start()] + b" " + line[epoch.end() :]
    found = _AT.search(rest) or _OF.search(rest)
    at, of = None, None
    if found is not None:
        told = [group for group in found.groups() if group is not None]
        at, of = count(told[0]), count(told[1]) if len(told) > 1 else None
    return Count(None if epoch is None else count(epoch.group(1)), at, of)


def _shapes(head: Head) -> frozenset[bytes]:
    """The shapes of the lines that are a training loop's; none where the text is no such log."""
    lines = [found for line in head.lines if (found := _line(line)) is not None]
    often = Counter(line.shape for line in lines)
    counted = {line.shape for line in lines if line.counted != (None, None, None)}
    return frozenset(
        shape
        for shape, times in often.items()
        if times >= (_FEWEST if shape in counted else _FEWEST_UNCOUNTED)
    )


def _sniff(head: Head) -> Match | None:
    if b"loss" not in head.text.lower() or not _shapes(head):
        return None
    return Match(POSSIBLE - 0.05, "lines alike on which a number follows a loss's name")


def _read(source: LogSource, reading: Reading) -> StepTable:
    shapes = _shapes(source.head())
    lines: list[tuple[Count, dict[str, float]]] = []
    for block in source.blocks():
        found = map(_line, block.split(b"\n"))
        lines += [(one.counted, one.cells) for one in found if one and _fits(one, shapes)]
    steps, epochs, note = numbered([counted for counted, _ in lines])
    rows = Rows(source.log)
    for step, (_, cells) in zip(steps, lines, strict=True):
        rows.add(step, cells)
    there = {name for _, cells in lines for name in cells}
    facts = LogFacts(
        unit=PER_EPOCH if epochs else PER_STEP,
        interval=1 if epochs else None,
        notes=(note,) if note else (),
        unknown=() if "grad_l2_pre_clip" in there else ("gradient norms",),
    )
    return rows.table(print_lines.name, facts, where=source.path)


def _fits(line: _Line, shapes: frozenset[bytes]) -> bool:
    """Is a line one of the loop's? Where the head shows no shape, the user named the format."""
    return not shapes or line.shape in shapes


print_lines = Importer(
    name="print-lines",
    description="lines that a loop prints of itself: step 10 loss 2.1 lr 0.001, bars with loss=…",
    sniff=_sniff,
    read=_read,
)
