"""What one line that a training loop prints of itself tells: its counters and its numbers.

Such as ``step 10 loss 2.1 lr 0.001``, ``Train: [3/90][10/1251] loss 2.1 (2.3)`` or a bar with
``loss=2.1``. Prose is told apart by its shape: lines that a program prints are alike but for their
numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import NUMBER, count, number
from forensics.runlog.scanner.overflow_notes import NEEDLES, NOTE
from forensics.runlog.scanner.printed_counts import Count

_WORD = rb"[A-Za-z][\w/.]{0,40}"
_PAIR = re.compile(
    rb"(?<![\w./'\"])(" + _WORD + rb"(?:[ ]" + _WORD + rb")?)(?:[ ]?\([a-z]{1,12}\))?"
    rb"[ \t]{0,9}(?:[:=][ \t]{0,9}|[ \t])(" + NUMBER + rb")(?![\w.'\"])"
)
_GLOBAL = re.compile(
    rb"(?i)(?<![a-z])global[ _-]?(?:step|iter(?:ation)?)s?[ \t:=#\[(]{1,12}"
    rb"(\d{1,12})(?:[ \t]{0,2}/[ \t]{0,4}(\d{1,12}))?(?![\w.])"
)
_AT = re.compile(
    rb"(?i)(?<![a-z])(?:steps?|iter(?:ation)?s?|it|batch|(?:n(?:um_)?)?updates?|%b)"
    rb"[ \t:=#\[(]{1,12}(\d{1,12})(?:[ \t]{0,2}/[ \t]{0,2}(\d{1,12}))?(?![\w.%%])"
    % "训练次数|训练步数|迭代次数".encode()
)
_NESTED = re.compile(
    rb"\[[ \t]{0,6}(\d{1,9})(?:/\d{1,9})?[ \t]{0,2}\][ \t,:]{0,4}"
    rb"\[[ \t]{0,9}(\d{1,12})/[ \t]{0,9}(\d{1,12})[ \t]{0,2}\]"
)
"""``[3/90][10/1251]`` and ``[3] [10/1251]``: the epoch, and the batch within it."""
_PAIRED = re.compile(rb"^[^\w\[]{0,4}\[[ \t]{0,6}(\d{1,9}),[ \t]{1,9}(\d{1,12})[ \t]{0,2}\]")
"""``[3,  2000]`` in front of all: the epoch, and the batch within it."""
_OF = re.compile(
    rb"[\[(][ \t]{0,6}(\d{1,12})/(\d{1,12})|(?<![\w./])(\d{1,12})/(\d{1,12}) ?(?:\[|%b)"
    % "━".encode()
)
"""``(10/1251)``; in front of a bar, that of Keras 3 among them."""
_LED = re.compile(
    rb"(?:^|[\] \t])\[(\d{1,12})\][ \t]{1,4}"
    rb"(?=[A-Za-z_][\w/'-]{0,40}(?: [\w'-]{1,40})? ?[=:])"
)
"""``[100] accuracy=0.5, loss=2.3``: the step in front of all."""
_COUNTED_LOSS = re.compile(
    rb"(?i)\b((?:[a-z]{1,12} )?loss)[ \t]{1,4}(\d{1,12})[ \t]{1,4}(?=" + NUMBER + rb"(?![\w.]))"
)
"""``Train loss 40 0.731``: the step between the name and the loss."""
_OF_EPOCH = re.compile(rb"\|[ \t]{1,3}(\d{1,12})/(\d{1,12})[ \t]{1,3}\|")
"""``| Epoch 35 | 83/332 |``: the batch, on a line that tells the epoch."""
_EPOCH = re.compile(rb"(?i)(?<![a-z])(?:epoch|ep)[ \t:=#\[(]{1,6}(\d{1,9})(?![\w.%])")
_HEADING = re.compile(rb"(?i)^[^\n]{0,60}\bepoch[ \t:=#\[(]{1,6}(\d{1,9})(?![\w.])")
_RATE = re.compile(rb"[\d:?]{1,12}<[\d:?]{1,12},[ \t]{0,3}[\d.?]{1,12} ?(?:\w{1,9}/s|s/\w{1,9})")
_BAR = re.compile(rb"\|[^|\n]{0,200}\||\[[=>.# -]{3,200}\]")
_FIGURE = re.compile(NUMBER)
_MEASURED = re.compile(rb"(?:#(?:days?,|[dhms]|[kKMGT]i?B?)?:?)+")
"""One number or a time in a shape, with the unit behind it."""
_VALIDATION = re.compile(
    rb"(?i)\b(?:val|valid|cv|validation|validating|eval|evaluating|evaluation|test|testing|dev)\b"
    rb"|" + "测试|验证".encode()
)
_STEP_HEADING = re.compile(
    rb"(?i)^[^\n]{0,120}\bglobal[ _-]?step[ \t:=]{1,4}(\d{1,12})(?![\w.])"
    rb"|^(?:[\d:,.T/ \t\[\]-]{0,40}(?:INFO|info|Info)\b)?[^\w\n]{0,80}"
    rb"(?:step|iter(?:ation)?|update)[ \t:#]{1,4}(\d{1,12})"
    rb"(?:[ \t]{0,2}/[ \t]{0,2}\d{1,12})?[^\w\n]{0,80}$"
)
"""``===== Step 3/100 =====``: the step of the lines below it."""
_BLOCK = re.compile(
    rb"(?i)^[^\n]{0,120}\b(?:val|valid|validation|eval|evaluation|test|dev)[ _]"
    rb"(?:metrics|results|stats|losses)[ \t]*:[ \t]*$"
)
"""``Epoch 3 - elapsed: 2.3 - Test metrics:``: what the lines below are of."""
_BEGINS_VALIDATION = re.compile(
    rb"(?i)^(?:\[[^\]\n]{1,60}\][ \t:-]{0,4}|[\d:,. -]{8,30}(?:INFO[ :-]{1,3})?)?[^\w\n]{0,12}"
    rb"(?:validation|validating|evaluation|evaluating|testing)\b[^\n]{0,80}$"
)
_WIDE_COLON = "：".encode()
"""As it is typed in Chinese."""
_TRAINING = re.compile(rb"(?i)train")
_LOSS = re.compile(rb"(?i)loss")
_BEST = re.compile(rb"(?i)best|lowest|min|improved|early")
"""A validation of long ago, told once more."""
_NOTED = re.compile(rb"(?:\[[^\]\n]{1,60}\] ?){0,4}(?:" + NOTE + rb")")
"""An overflow note with the logger's brackets in front."""
_KEPT = frozenset(
    ("loss", "val_loss", "lr", "grad_l2_pre_clip", "grad_l2_post_clip", "scaler_scale")
)
_NAMES = {"grad": "grad_l2_pre_clip"}
"""What names mean beside a loss, that mean nothing alone."""
_FEWEST = 3
"""Lines of one shape that make a log, where they count something."""
_FEWEST_UNCOUNTED = 10
"""The same where nothing on them counts."""
_MOST_SHAPES = 10_000
"""How many shapes of lines are compared with those of the loop."""
_LONGEST = 1000
"""Bytes of a line; longer ones are no print of a training loop."""


class PrintedLine(NamedTuple):
    """One line that tells a loss.

    Attributes:
        shape: the line without its numbers: lines of one print are alike in it.
        counted: its counters.
        cells: column → number.
        named: is its loss called so, and not only like one?
    """

    shape: bytes
    counted: Count
    cells: dict[str, float]
    named: bool = True

    @property
    def trains(self) -> bool:
        """Does it tell of training, and not of a validation alone?"""
        return "loss" in self.cells


def printed_line(line: bytes) -> PrintedLine | None:
    """What a line tells, or None where it tells no loss."""
    if len(line) > _LONGEST or b"loss" not in line.lower():
        return None
    line = _plainly(line)
    cells, named = _cells(line)
    if "loss" in cells and "val_loss" not in cells and _of_validation(line):
        cells["val_loss"] = cells.pop("loss")
    if "loss" not in cells and "val_loss" not in cells:
        return None
    shape = _FIGURE.sub(b"#", _BAR.sub(b"|", _RATE.sub(b"", line)))
    return PrintedLine(b"".join(shape.split()), _count(line), cells, named)


def epoch_heading(line: bytes) -> int | None:
    """The epoch that a line without a loss says has begun or ended; None where it says none."""
    match = _HEADING.match(line) if b"poch" in line or b"POCH" in line else None
    return count(match.group(1)) if match else None


def step_heading(line: bytes) -> int | None:
    """The step that a line without a loss says the lines below it are of; None for any other."""
    match = _STEP_HEADING.match(line) if len(line) < 200 else None
    return count(match.group(1) or match.group(2)) if match else None


def heads_validation(line: bytes) -> bool:
    """Is a line without a loss the title of a validation's metrics, which stand below it?"""
    return len(line) < 200 and _BLOCK.match(line) is not None


def begins_validation(line: bytes) -> bool:
    """Does a line without a loss say that a validation begins?"""
    return len(line) < 200 and _BEGINS_VALIDATION.match(line) is not None


def pieces(block: bytes) -> Iterator[bytes | re.Match[bytes]]:
    """The lines of a block, and the overflow notes in and between them, in order."""
    noisy = any(needle in block for needle in NEEDLES)
    for line in block.split(b"\n"):
        if not noisy or not any(needle in line for needle in NEEDLES):
            yield line
            continue
        at = 0
        for match in _NOTED.finditer(line):
            yield line[at : match.start()]
            yield match
            at = match.end()
        yield line[at:]


def shapes_of(lines: Iterable[PrintedLine]) -> frozenset[bytes]:
    """The shapes of the lines that are a training loop's; none where the text is no such log.

    Lines that count nothing and tell a loss of one name or another (``loss_gen``, ``loss_kl``) are
    parts of records, and none of them is the loss, least of all where one is called so.
    """
    found = list(lines)
    uncounted = [line for line in found if line.counted == (None,) * 3]
    parts = {line.shape for line in uncounted if not line.named}
    if len(parts) > 1 or any(line.named and line.trains for line in uncounted):
        found = [line for line in found if line.shape not in parts]
    often = Counter(line.shape for line in found)
    counted = {line.shape for line in found if line.counted != (None, None, None)}
    training = {line.shape for line in found if line.trains}
    few = set(counted)
    if counted & training:  # then a validation stands between lines that count
        few |= {shape for shape in often if shape not in training and not _BEST.search(shape)}
    shapes = frozenset(
        shape
        for shape, times in often.items()
        if times >= (_FEWEST if shape in few else _FEWEST_UNCOUNTED)
    )
    return shapes if shapes & training else frozenset()


class KnownShapes:
    """The shapes of a loop's lines, and what is one of them but for a unit or a remark.

    ``eta 1 day, 0:12:01`` becomes ``eta 23:59:59`` in a long log, ``812MB`` becomes ``1.1GB``, and
    ``*best*`` follows some losses.
    """

    def __init__(self, shapes: frozenset[bytes]) -> None:
        self._shapes: dict[bytes, bytes | None] = {shape: shape for shape in shapes}
        self._alike: dict[bytes, bytes] = {}
        for shape in sorted(shapes):
            for key in _likeness(shape):
                self._alike.setdefault(key, shape)

    def known(self, shape: bytes) -> bytes | None:
        """The shape of the loop's lines that a line has, or None where it has none of them."""
        if not self._alike:
            return shape
        if shape not in self._shapes:
            if len(self._shapes) > _MOST_SHAPES:
                return None
            alike = (self._alike[key] for key in _likeness(shape) if key in self._alike)
            self._shapes[shape] = next(alike, None)
        return self._shapes[shape]


def _likeness(shape: bytes) -> Iterator[bytes]:
    """A shape without units and parts of a time; and what it begins with, down to the loss."""
    coarse = _MEASURED.sub(b"#", shape)
    yield coarse
    loss = coarse.lower().find(b"loss")
    end = coarse.find(b"#", loss)
    if b"#" in coarse[:loss] and end >= 0:
        yield coarse[:end]


def _cells(line: bytes) -> tuple[dict[str, float], bool]:
    """Column → number, for the names on a line that are columns; and whether one is the loss.

    The first of each name counts. Without a loss the name that is most like one is taken.
    """
    cells: dict[str, float] = {}
    others: dict[str, float] = {}
    for text, figure in _PAIR.findall(line):
        value = number(figure)
        if value is None:
            continue
        name = text.decode("ascii", errors="replace")
        last = name.rpartition(" ")[2]
        column = canonical_name(name) or canonical_name(last) or _NAMES.get(last.lower())
        if column in _KEPT:
            cells.setdefault(column, value)
        elif column is None:
            others.setdefault(name, value)
    named = "loss" in cells
    if not named:
        # Of words in a line, a criterion's may be of anything.
        likely = loss_like(list(others), criteria=False)
        cells.update((column, others[name]) for name, column in likely.items())
    return cells, named


def _plainly(line: bytes) -> bytes:
    """A line without what would hide its numbers: quotes around them, a step between the words."""
    line = line.replace(_WIDE_COLON, b":")
    if b"': '" in line and b"{" not in line:
        line = line.replace(b"'", b"")
    if (counted := _COUNTED_LOSS.search(line)) and _count(line).at is None:
        before, after = line[: counted.start()], line[counted.end() :]
        line = b"%bstep %b %b %b" % (before, counted.group(2), counted.group(1), after)
    return line


def _of_validation(line: bytes) -> bool:
    """Does a word in front of the loss say that it is a validation's?"""
    loss = _LOSS.search(line)
    before = line[: loss.start()] if loss else line
    return _VALIDATION.search(before) is not None and _TRAINING.search(before) is None


def _count(line: bytes) -> Count:
    paired = _PAIRED.match(line)
    if paired is not None:
        return Count(count(paired.group(1)), count(paired.group(2)), None)
    nested = _NESTED.search(line)
    through = _GLOBAL.search(line)
    if nested is not None and through is None:
        return Count(*map(count, nested.groups()))
    epoch = _EPOCH.search(line)
    rest = line if epoch is None else line[: epoch.start()] + b" " + line[epoch.end() :]
    found = through or _AT.search(rest) or _OF.search(rest) or _LED.search(rest)
    if found is None and epoch is not None:
        found = _OF_EPOCH.search(rest)
    at, of = None, None
    if found is not None:
        told = [group for group in found.groups() if group is not None]
        at, of = count(told[0]), count(told[1]) if len(told) > 1 else None
    return Count(None if epoch is None else count(epoch.group(1)), at, of)
