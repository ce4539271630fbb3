"""Logs in which every line of the loop is one print: read by one pattern instead of line by line.

``step 10 loss 2.1 lr 0.001`` and the same again with other numbers, among lines that are nothing
to a training. What the numbers mean is found out by asking ``printed_line`` about lines with other
numbers in their place, so that both ways of reading a log agree; where a line is met that might
tell more, the log is none of these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise

from forensics.runlog.scanner.numbers import number
from forensics.runlog.scanner.overflow_notes import NEEDLES
from forensics.runlog.scanner.printed_lines import PrintedLine, printed_line

_SLOT = re.compile(
    rb"(?:(?<=[\s=:(,\[])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,4})?(?![\d.])|\b(?:nan|inf)\b"
)
_COUNT = rb"\d{1,12}"
_VALUE = rb"[-+]?\d{1,20}(?:\.\d{0,25}|)(?:[eE][-+]?\d{1,4}|)"
_NOT_FINITE = rb"|nan|-?inf"
_OTHER = rb"[-+]?\d{1,20}(?:\.\d{1,25}(?:[eE][-+]?\d{1,4}|)|[eE][-+]?\d{1,4})"
_WORDS = (b"loss", b"poch", b"valid", b"eval", b"test", "测试".encode(), "验证".encode())
"""One of them is in each line that tells something: a loss, an epoch, that a validation begins."""
_END = "end"
_EPOCH = "epoch"
_LONGEST = 500
_MOST_SLOTS = 40
_LOOKED_AT = 200


class PlainPrints:
    """Reads the lines of one print.

    Args:
        pattern: finds each line; its groups are named as columns, and ``end`` where it counts to.
        words: how often each of the words that tell something is in such a line.
        epochs: does it tell an epoch, within which the count may begin anew?

    Attributes:
        pattern: the same.
        names: the columns.
        epochs: the same.
    """

    def __init__(
        self, pattern: re.Pattern[bytes], words: Mapping[bytes, int], epochs: bool = False
    ) -> None:
        self.pattern = pattern
        self.epochs = epochs
        self.names = tuple(name for name in pattern.groupindex if name != _END)
        self._words = words
        self._end: bytes | None = None
        self._last = -1

    def cells(self, block: bytes) -> list[tuple[bytes, ...]] | None:
        """The cells of each line of a block; None where it may tell more than those.

        That is where other words tell something, or the count of a loop that goes to an end, or
        that tells of epochs, falls or begins anew.
        """
        found: list[tuple[bytes, ...]] = self.pattern.findall(block)
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        if len(found) < lines and self._told_between(block, len(found)):
            return None
        places = self.pattern.groupindex
        if _END not in places and not self.epochs:
            return found
        at, end = places["step"] - 1, places.get(_END, 0) - 1
        ends = {cells[end] for cells in found} if end >= 0 else {b""}
        if not self._goes_on([int(cells[at]) for cells in found], ends):
            return None
        if end < 0:
            return found
        return [tuple(cell for i, cell in enumerate(cells) if i != end) for cells in found]

    def _told_between(self, block: bytes, prints: int) -> bool:
        """May the lines between the prints of a block tell something?"""
        if any(needle in block for needle in NEEDLES):
            return True
        lower = block.lower()
        return any(lower.count(word) != prints * times for word, times in self._words.items())

    def _goes_on(self, steps: list[int], ends: set[bytes]) -> bool:
        """Does the count rise to the one end that it has?"""
        if not steps:
            return True
        rising = all(a < b for a, b in pairwise([self._last, *steps]))
        self._end = next(iter(ends)) if self._end is None else self._end
        self._last = steps[-1]
        return rising and ends == {self._end}


def plain_prints(lines: Sequence[bytes], shape: bytes) -> PlainPrints | None:
    """The one print of a log, by its first lines; None where they tell more than columns can.

    Args:
        lines: of the head, without overflow notes.
        shape: of the lines that are the loop's, of which there is but this one.
    """
    told = [(line, found) for line in lines if (found := printed_line(line)) is not None]
    own = [(line, found) for line, found in told if found.shape == shape]
    if not own or len(own[0][0]) > _LONGEST:
        return None
    prints = _understood(own[0][0])
    if prints is None or len(own) < len(told):
        return None
    agrees = all(_agrees(prints, *pair) for pair in islice(own, _LOOKED_AT))
    return prints if agrees else None


def _understood(line: bytes) -> PlainPrints | None:
    slots = list(_SLOT.finditer(line))
    if not slots or len(slots) > _MOST_SLOTS:
        return None
    whole = [slot.group().isdigit() for slot in slots]
    meaning = _meaning(line, slots, whole)
    if meaning is None:
        return None
    parts, at = [rb"(?m)^"], 0
    for i, slot in enumerate(slots):
        parts.append(re.escape(line[at : slot.start()]))
        parts.append(_written(line, slots, i, meaning, whole))
        at = slot.end()
    parts.append(re.escape(line[at:]) + rb"$")
    lower = line.lower()
    words = {word: lower.count(word) for word in _WORDS}
    return PlainPrints(re.compile(b"".join(parts)), words, _EPOCH in meaning.values())


def _meaning(
    line: bytes, slots: Sequence[re.Match[bytes]], whole: Sequence[bool]
) -> dict[int, str] | None:
    """The column that each number is, by its place; None where a line is no plain row."""
    probes = [b"%d" % (10_007 + 11 * i) if whole[i] else b"%d.%d" % (i + 3, i + 101)
              for i in range(len(slots))]  # fmt: skip
    found = printed_line(_filled(line, slots, probes))
    if found is None or not found.named or not found.trains:
        return None
    if found.counted.at is None:
        return None
    by_value = {float(probe): i for i, probe in enumerate(probes)}
    told = {"step": float(found.counted.at), **found.cells}
    for name, number_of in ((_END, found.counted.of), (_EPOCH, found.counted.epoch)):
        if number_of is not None:
            told[name] = float(number_of)
    if not all(value in by_value for value in told.values()):
        return None
    meaning = {by_value[value]: name for name, value in told.items()}
    counts = all(whole[i] for i, name in meaning.items() if name in ("step", _END, _EPOCH))
    return meaning if counts and len(meaning) == len(told) else None


def _written(
    line: bytes,
    slots: Sequence[re.Match[bytes]],
    i: int,
    meaning: Mapping[int, str],
    whole: Sequence[bool],
) -> bytes:
    """The pattern of one number."""
    name = meaning.get(i)
    if name is None or name == _EPOCH:
        return rb"(?:%b)" % (_COUNT if whole[i] else _OTHER)
    if name in ("step", _END):
        return rb"(?P<%b>%b)" % (name.encode(), _COUNT)
    more = _NOT_FINITE if _may_be_nan(line, slots, i, name) else b""
    return rb"(?P<%b>%b%b)" % (name.encode(), _VALUE, more)


def _may_be_nan(line: bytes, slots: Sequence[re.Match[bytes]], i: int, name: str) -> bool:
    """Does a line with NaN in a number's place tell just that?"""
    texts = [slot.group() for slot in slots]
    before = printed_line(_filled(line, slots, [*texts[:i], b"1.5", *texts[i + 1 :]]))
    after = printed_line(_filled(line, slots, [*texts[:i], b"nan", *texts[i + 1 :]]))
    if before is None or after is None or not math.isnan(after.cells.get(name, 0.0)):
        return False
    rest = {key: value for key, value in after.cells.items() if key != name}
    same = {key: value for key, value in before.cells.items() if key != name}
    return rest == same and after.counted == before.counted and after.shape == before.shape


def _filled(line: bytes, slots: Sequence[re.Match[bytes]], texts: Sequence[bytes]) -> bytes:
    parts, at = [], 0
    for slot, text in zip(slots, texts, strict=True):
        parts += [line[at : slot.start()], text]
        at = slot.end()
    return b"".join(parts) + line[at:]


def _agrees(prints: PlainPrints, line: bytes, found: PrintedLine) -> bool:
    """Does the pattern read from a line what ``printed_line`` does?"""
    match = prints.pattern.search(line)
    if match is None:
        return False
    cells = {name: number(cell) for name, cell in match.groupdict().items()}
    step, end = cells.pop("step"), cells.pop(_END, None)
    same = all(_same(cells.get(name), value) for name, value in found.cells.items())
    counted = (found.counted.at, found.counted.of) == (step, end)
    epochs = (found.counted.epoch is not None) == prints.epochs
    return same and counted and epochs and cells.keys() == found.cells.keys()


def _same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (math.isnan(one) and math.isnan(other)))
