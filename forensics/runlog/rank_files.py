"""The files of a run of many ranks: each rank's own rows, and the mark of where it is.

A rank that waits for another one is as silent as the one it waits for: neither ends its step. So
each keeps a mark beside its rows, one line that is written over in place: the step, and how far
in it the rank has come. It is what is left of a rank that was killed.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from forensics.frozen import dataclass

FOLDER = "ranks"
RANK_COLUMNS = (
    "step",
    "loss",
    "grad_l2_local",
    "grad_local_nonfinite",
    "first_nonfinite",
    "grad_l2_pre_clip",
    "skipped",
    "skip_reason",
    "data_position",
    "time_s",
)
"""Columns of a rank's log; those that nobody filled stay empty."""
_MARK = re.compile(r"rank-(\d{5})\.now\Z")
_MARK_SIZE = 512
"""Bytes of a mark, padded with blanks: one write within a page, which no kill tears."""
_LONGEST_MESSAGE = 150
"""Characters; as JSON, where a quote takes two, it still fits."""
PULSE_S = 5.0
"""Seconds between two signs of life."""
_AT_ONCE_S = 0.05
"""Seconds between coming somewhere and writing it, at most."""


class Stage(StrEnum):
    """How far a rank has come in its step, in this order."""

    OWN = "own"
    """At its own part: data, forward, backward."""
    REDUCTION = "reduction"
    """Its gradients are with the reduction, which waits for those of the other ranks."""
    REDUCED = "reduced"
    """The gradients are reduced: clip, optimizer, logging."""

    @property
    def order(self) -> int:
        """Its place in the step."""
        return list(Stage).index(self)


@dataclass(frozen=True)
class RankMark:
    """Where a rank is, or was when it was last heard of.

    Attributes:
        rank: its number.
        step: the step under way.
        stage: how far in it.
        unix_s: when it came there, seconds since 1970 by its own clock.
        heard_s: when its process was last heard of, by the same clock.
        ended: empty while it runs; else as ``Ended.how``.
        message: of the exception that ended it.
    """

    rank: int
    step: int
    stage: Stage
    unix_s: float = 0.0
    heard_s: float = 0.0
    ended: str = ""
    message: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Step and stage, to be compared with another rank's."""
        return self.step, self.stage.order

    @property
    def there_s(self) -> float:
        """How long it is known to have been there."""
        return max(0.0, self.heard_s - self.unix_s)


def rank_log_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """Where a rank's rows are."""
    return Path(run_dir) / FOLDER / f"rank-{rank:05d}.csv"


def mark_path(run_dir: str | os.PathLike[str], rank: int) -> Path:
    """Where a rank's mark is."""
    return Path(run_dir) / FOLDER / f"rank-{rank:05d}.now"


class MarkWriter:
    """Keeps the mark of one rank: one small write a stage, nothing waits for the disk.

    A thread says every few seconds that the process still lives: how long it has been waiting
    where it is can then be told, even after something has killed it.

    Args:
        path: of the mark; begun anew.
        pulse_s: seconds between two signs of life.

    Raises:
        OSError: it cannot be opened or, later, written.
    """

    def __init__(self, path: Path, pulse_s: float = PULSE_S) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        self._mark: tuple[int, Stage, float] | None = None
        self._end = ""
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._pulse_s = pulse_s
        self._thread = threading.Thread(target=self._live, name="forensics-mark", daemon=True)
        self._thread.start()

    def put(self, step: int, stage: Stage) -> None:
        """The rank has come to this stage of the step."""
        with self._lock:
            self._mark = step, stage, time.time()
            self._write()

    def note(self, step: int, stage: Stage) -> None:
        """The same, written with the next sign of life only: for what a step does many times."""
        with self._lock:
            self._mark = step, stage, time.time()

    def end(self, how: str, message: str = "") -> None:
        """The rank has ended, where its mark says; safe to repeat."""
        self._ending.set()
        with self._lock:
            if self._file < 0:
                return
            kept = message.encode("ascii", errors="replace").decode()[:_LONGEST_MESSAGE]
            self._end = f', "ended": {json.dumps(how)}, "message": {json.dumps(kept)}'
            try:
                self._write()
            finally:
                os.close(self._file)
                self._file = -1

    def _live(self) -> None:
        while not self._ending.wait(self._pulse_s):
            with self._lock, suppress(OSError):
                self._write()

    def _write(self) -> None:
        if self._file >= 0 and self._mark:
            step, stage, since = self._mark  # JSON by hand: the module for it takes its time
            line = f'{{"step": {step}, "stage": "{stage}", "unix_s": {since!r}'
            line += f', "heard_s": {time.time()!r}{self._end}}}'
            os.pwrite(self._file, line.ljust(_MARK_SIZE - 1).encode("ascii") + b"\n", 0)


def as_known(marks: Sequence[RankMark], last_rows: Mapping[int, int]) -> tuple[RankMark, ...]:
    """Marks as of the last that is known of each rank.

    A rank writes at once when it goes into the reduction: whoever waits there must not be taken for
    the one that is waited for. That it has come out, and has ended the step, it writes with its
    next sign of life. Until then its row tells of the end, and the others tell that it came out:
    none gets through a reduction before all have gone in.

    Args:
        marks: as they were read.
        last_rows: of a rank, the last step that its log has.
    """
    moved = [_past_its_rows(mark, last_rows.get(mark.rank, -1)) for mark in marks]
    furthest = max((mark.place for mark in moved), default=(0, 0))
    return tuple(_past_the_reduction(mark, furthest) for mark in moved)


def _past_its_rows(mark: RankMark, last: int) -> RankMark:
    if mark.ended or last < mark.step:
        return mark
    return RankMark(mark.rank, last + 1, Stage.OWN, mark.heard_s, mark.heard_s)


def _past_the_reduction(mark: RankMark, furthest: tuple[int, int]) -> RankMark:
    if mark.stage is not Stage.REDUCTION or furthest <= mark.place:
        return mark
    if mark.ended or mark.there_s > _AT_ONCE_S:  # it has said since that it is still there
        return mark
    return RankMark(mark.rank, mark.step, Stage.REDUCED, mark.unix_s, mark.heard_s)


def read_mark(path: Path) -> RankMark | None:
    """The mark in a file; None where it is none, or is damaged.

    Raises:
        OSError: it cannot be read.
    """
    match = _MARK.match(path.name)
    if match is None or not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(2 * _MARK_SIZE)
    try:
        data: Any = json.loads(text)
        stage = Stage(data["stage"])
        step, moment = int(data["step"]), float(data["unix_s"])
        heard = float(data.get("heard_s", moment))
        ended, message = str(data.get("ended", "")), str(data.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if step < 0 or not math.isfinite(moment) or not math.isfinite(heard):
        return None
    return RankMark(int(match[1]), step, stage, moment, heard, ended, message[:_LONGEST_MESSAGE])
