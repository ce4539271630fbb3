"""What loss scalers print on an overflow, counted until the next record tells the step.

Such a line bears no step, and every rank may print it: of one stretch between two records the rank
that wrote most is counted. Apex does not name the rank: there a scale that is told again right away
is another rank's word of it, as each overflow halves it. Ranks' lines may run into each other, so
wordings are searched for and not whole lines.
"""

from __future__ import annotations

import re
from collections import Counter

from forensics.runlog.log_facts import ScalerHints
from forensics.runlog.scanner.numbers import NUMBER, number
from forensics.runlog.scanner.rows import Cell
from forensics.runlog.scanner.skip_totals import TOTAL

_SCALE = NUMBER
NOTE = (
    rb"(?:OVERFLOW|loss scale overflow)! (?:Rank (?P<rank>\d{1,6}) )?Skipping step\. "
    rb"Attempted loss scale: (?P<was>%b)"
    rb"(?:, reducing to (?P<now>%b)|(?P<hysteresis>, but hysteresis is ))?"
    rb"|(?:\[Rank (?P<logged>\d{1,6})\] )?Overflow detected\. Skipping step\. "
    rb"Attempted loss scale: (?P<tried>%b)(?:, reducing to (?P<next>%b))?"
    rb"|Grad overflow on iteration:? ?(?P<iteration>\d{1,15})"
    rb"|Gradient overflow\.  ?Skipping step,(?: loss scaler (?P<scaler>\d{1,6}))? reducing loss "
    rb"scale to (?P<apex>%b)"
) % ((_SCALE,) * 5)
"""A fragment of a pattern, with named groups: DeepSpeed's and Apex' wordings."""
TOTALS = (
    rb"\bstep=(?P<engine_step>\d{1,15}), skipped=(?P<total>\d{1,15}), "
    rb"lr=\[(?P<rates>[^\]\n]{0,4000})\]"
)
"""What DeepSpeed's engine prints now and then: all skips so far, and the rates of its groups."""
NEEDLES = {b"verflow": 24, b"OVERFLOW!": 0}
"""Texts of which one is in each note, and how far before it the note begins at most."""
HYSTERESIS = re.compile(rb"hysteresis is (\d{1,9})")
ATTEMPT = re.compile(rb"Attempted loss scale: (" + NUMBER + rb")")


class OverflowNotes:
    """Counts the notes between two records.

    Attributes:
        total: overflows so far.
        unreduced: those of them that left the loss scale alone, by hysteresis.
        total_so_far: what the engine's counter of skips has said since the last record.
    """

    def __init__(self) -> None:
        self.total = 0
        self.unreduced = 0
        self.total_so_far: int | None = None
        self._by_writer: Counter[str] = Counter()
        self._iterations: set[int] = set()
        self._held = 0
        self._scale: float | None = None
        self._told: dict[bytes, float | None] = {}

    def take(self, match: re.Match[bytes]) -> None:
        """Count one match of ``NOTE``."""
        found = match.groupdict()
        if found["iteration"] is not None:
            self._iterations.add(int(found["iteration"]))
            return
        if found["apex"] and self._again(found["scaler"] or b"0", number(found["apex"])):
            return
        kind = "apex" if found["apex"] else "logged" if found["tried"] else "scaler"
        writer = found["rank"] or found["logged"] or found["scaler"] or b"0"
        name = f"{kind} {writer.decode()}"
        self._by_writer[name] += 1
        scale = found["now"] or found["next"] or found["apex"]
        if scale is not None:
            self._scale = number(scale)
            was = number(found["was"] or found["tried"] or b"")
            held = was is not None and self._scale == was > 1  # at 1 it is the floor
        else:
            self._scale = number(found["was"] or found["tried"] or b"")
            held = bool(found["hysteresis"])
        self._held += held and self._by_writer[name] == max(self._by_writer.values())

    def _again(self, scaler: bytes, scale: float | None) -> bool:
        """Has another rank told of this overflow? At a scale of 1 it may be a floor."""
        again = scale is not None and scale > 1 and self._told.get(scaler) == scale
        self._told[scaler] = scale
        return again

    def drop(self) -> None:
        """Forget what is counted since the last record: it was another engine's."""
        self._by_writer.clear()
        self._iterations.clear()
        self._told.clear()
        self._held, self._scale = 0, None

    @property
    def count(self) -> int:
        """Overflows since the last record."""
        return max(max(self._by_writer.values(), default=0), len(self._iterations))

    def cells(self) -> dict[str, Cell]:
        """The cells of the record that ends the stretch; none where nothing overflowed."""
        cells: dict[str, Cell] = {}
        if self.total_so_far is None and not self._by_writer and not self._iterations:
            return cells  # as nearly always
        if self.total_so_far is not None:
            cells[TOTAL] = self.total_so_far
            self.total_so_far = None
        if not self._by_writer and not self._iterations:
            return cells
        count = self.count
        cells["skipped_steps"] = count
        if self._scale is not None:
            cells["scaler_scale"] = self._scale
        self.total += count
        self.unreduced += min(self._held, count)
        self.drop()
        return cells


def hints_of(text: bytes) -> ScalerHints | None:
    """What the first notes of a log tell of the scaler; None without any."""
    first, held = ATTEMPT.search(text), HYSTERESIS.search(text)
    if first is None and held is None:
        return None
    return ScalerHints(
        initial_scale=number(first.group(1)) if first else None,
        hysteresis=int(held.group(1)) if held else None,
        factor=0.5 if first else None,
    )
