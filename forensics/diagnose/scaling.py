"""What the loss scaler did, worked out once a run: its moves, its interval, its routine skips.

A healthy fp16 scaler overflows: in a run of skips while it calibrates at the start, then about
once a growth interval. Rules about loss scaling and about non-finite gradients share this reading
of the log, so that all of them agree on what is routine. It looks backwards only, but for what a
log shows of its scaler as a whole: whether one is at work, whether it ever backs off, and its
growth interval. Rows that are appended later change what was said of earlier ones only by these.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

WINDOW = 1000
"""Steps in which skips and octaves are counted, always divided by 1,000: a rate over a window that
is still filling false-alarms in a third of healthy runs or more."""
DEFAULT_INTERVAL = 2000
"""Growth interval of ``torch.amp.GradScaler``, assumed until the log or run.json says otherwise."""
DEFAULT_START = 16.0
"""log2 of GradScaler's initial scale, assumed where no scale is logged."""
UNKNOWN_HYSTERESIS = 2
"""Overflows that one halving may take where nothing says: Megatron's and DeepSpeed's default."""
WRITTEN = 2.5
"""Octaves: no scaler in use lowers its scale so far for one overflow (a backoff of 1/4 is 2)."""
POISON_LOG2 = -128.0
"""At a scale of 2^-128 its reciprocal is Inf in fp32 and GradScaler itself writes NaN."""


@dataclass(frozen=True, eq=False)
class ScaleLog:
    """The scale as it is logged, in stretches of neighbouring rows that log the same one.

    A scale stands still for hundreds of steps, so that this is small where the column is long.
    Rows without a usable scale lie in none; a gap ends a stretch.

    Attributes:
        first: first row of each stretch, shape (L,), ascending.
        last: its last row.
        log2: log2 of its scale, a printed 0 as -150.
    """

    first: IntArray
    last: IntArray
    log2: FloatArray

    def __len__(self) -> int:
        return len(self.first)

    def at(self, rows: IntArray) -> FloatArray:
        """log2 of the last scale at or before each row (the first one's, before it)."""
        return self.log2[np.maximum(np.searchsorted(self.first, rows, side="right") - 1, 0)]

    def since(self, rows: IntArray) -> FloatArray:
        """log2 of the first scale at or after each row (the last one's, after it)."""
        return self.log2[np.minimum(np.searchsorted(self.last, rows), len(self) - 1)]

    def within(self, first: int, last: int) -> ScaleLog:
        """The stretches from row ``first`` to row ``last``, cut to what lies between them."""
        inside = slice(
            int(np.searchsorted(self.last, first)),
            int(np.searchsorted(self.first, last, side="right")),
        )
        return ScaleLog(
            np.maximum(self.first[inside], first),
            np.minimum(self.last[inside], last),
            self.log2[inside],
        )

    def spelled_out(self) -> tuple[IntArray, FloatArray]:
        """Every row that logs a scale, ascending, and its log2."""
        lengths = self.last - self.first + 1
        shift = self.first - (np.cumsum(lengths) - lengths)
        return np.arange(lengths.sum()) + np.repeat(shift, lengths), np.repeat(self.log2, lengths)


@dataclass(frozen=True, eq=False)
class Moves:
    """Changes of the scale in one direction.

    Attributes:
        rows: row of the step whose ``update()`` made each change, shape (moves,), ascending.
        into: row that first logs the new scale: the next one, or the same; shape (moves,).
        octaves: how far it went, in powers of two, positive, shape (moves,).
        to_log2: log2 of the scale it led to, shape (moves,).
        adjacent: no step is missing between the two rows compared, shape (moves,).
    """

    rows: IntArray
    into: IntArray
    octaves: FloatArray
    to_log2: FloatArray
    adjacent: BoolArray

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, chosen: BoolArray) -> Moves:
        """Some of the moves, by a mask of shape (moves,)."""
        return Moves(
            self.rows[chosen],
            self.into[chosen],
            self.octaves[chosen],
            self.to_log2[chosen],
            self.adjacent[chosen],
        )


@dataclass(frozen=True, eq=False)
class SkipRuns:
    """Runs of lost steps in a row; rows that do not say whether they were lost break none.

    Attributes:
        first: first row of each run, shape (R,), ascending.
        last: its last row.
        length: how many steps of it are lost.
        limit: the length from which on no healthy scaler explains it: one halving a skip would
            have taken the scale below 1.
    """

    first: IntArray
    last: IntArray
    length: IntArray
    limit: FloatArray

    @property
    def too_long(self) -> BoolArray:
        """Which runs reach their limit, shape (R,)."""
        return self.length >= self.limit


@dataclass(frozen=True, eq=False)
class Scaling:
    """The reading of one log.

    Attributes:
        step: step of each row, shape (rows,).
        active: was a loss scaler at work? None where the log cannot tell.
        scales: the scale as it is logged.
        lag_from: the row from which on the scale is known to be logged after ``update()``, not
            before; behind the last row where it is not.
        falls: the scale's falls.
        written: which of them no scaler made: far down in a step that did not overflow; as
            ``falls``.
        growths: the scale's growths.
        starts: rows where the run starts or resumes, ascending; empty in an empty log.
        skips: rows of lost steps (where no skips are logged, of the falls), shape (K,).
        lost: how many lost steps each of them is: 1, or more where a row covers many; shape (K,).
        calibrating: which of ``skips`` belong to the calibration after a start, shape (K,).
        calibration_ends: row of the last skip or fall of each calibration, or -1; as ``starts``.
        runs: the runs of ``skips``.
        routine: rows with a non-finite gradient norm that a scaler explains, shape (rows,).
        interval: growth interval; None where neither run.json nor the log tells.
        interval_row: the row from which on the log shows it (0 where run.json says it).
        hysteresis: overflows that one halving takes; None where run.json does not say.
        floor: the least scale by policy; 0 where there is none or none is known.
    """

    step: IntArray
    active: bool | None
    scales: ScaleLog
    lag_from: int
    falls: Moves
    written: BoolArray
    growths: Moves
    starts: IntArray
    skips: IntArray
    lost: IntArray
    calibrating: BoolArray
    calibration_ends: IntArray
    runs: SkipRuns
    routine: BoolArray
    interval: int | None
    interval_row: int
    hysteresis: int | None
    floor: float

    @property
    def patience(self) -> int:
        """Overflows one halving may take: by policy, else the most that is common."""
        return UNKNOWN_HYSTERESIS if self.hysteresis is None else self.hysteresis

    def interval_at(self, rows: IntArray) -> IntArray:
        """The growth interval as known at each row: GradScaler's default until the log shows it."""
        known = DEFAULT_INTERVAL if self.interval is None else self.interval
        return np.where(rows >= self.interval_row, known, DEFAULT_INTERVAL)

    def skip_limit(self, rows: IntArray) -> FloatArray:
        """Skips per 1,000 steps that a healthy scaler stays within, as known at each row.

        20 simulated seeds of 20,000 steps reach 18 at growth intervals from 1,000; shorter ones
        reach 2·h per interval, and twice that is allowed. Above 400 no interval excuses it.
        """
        allowed = 4 * WINDOW * self.patience / np.maximum(self.interval_at(rows), 1)
        return np.asarray(np.clip(allowed, 20, 400), dtype=np.float64)

    def octave_limit(self, rows: IntArray) -> FloatArray:
        """Octaves lost in 1,000 steps that are an alarm (healthy: up to 9), as known at a row."""
        allowed = 4 * WINDOW / np.maximum(self.interval_at(rows), 1)
        return np.asarray(np.maximum(allowed, 10), dtype=np.float64)

    def run_start(self, row: int) -> int:
        """The first row of the too long run of skips that a row lies in, else the row itself."""
        at = int(np.searchsorted(self.runs.first, row, side="right")) - 1
        inside = at >= 0 and row <= self.runs.last[at] and self.runs.too_long[at]
        return int(self.runs.first[at]) if inside else row

    @cached_property
    def counted(self) -> IntArray:
        """Rows of the skips that no calibration explains."""
        return self.skips[~self.calibrating]

    @cached_property
    def counted_falls(self) -> Moves:
        """The falls of the scaler's own that no calibration explains."""
        return self.falls.where(~self.is_calibrating(self.falls.rows) & ~self.written)

    def in_window(self, rows: IntArray, steps: int = WINDOW) -> IntArray:
        """How many of the rows lie in the ``steps`` steps that end at each of them.

        A row of many steps counts once for each step that was lost in it.
        """
        at = self.step[rows]
        before = np.searchsorted(at, at - steps, side="right")
        weight = np.ones(len(rows), dtype=np.int64)
        if len(self.skips) and self.lost.max() > 1:
            place = np.minimum(np.searchsorted(self.skips, rows), len(self.skips) - 1)
            weight = np.where(self.skips[place] == rows, self.lost[place], 1)
        total = np.concatenate(([0], np.cumsum(weight)))
        return np.asarray(total[1:] - total[before], dtype=np.int64)

    def octaves_lost(self, steps: int = WINDOW) -> FloatArray:
        """Octaves lost, net of growth, in the ``steps`` steps that end at each counted fall."""
        fell, grew = self.counted_falls, self.growths
        at, up = self.step[fell.rows], self.step[grew.rows]
        down_total = np.concatenate(([0.0], np.cumsum(fell.octaves)))
        up_total = np.concatenate(([0.0], np.cumsum(grew.octaves)))
        lost = down_total[1:] - down_total[np.searchsorted(at, at - steps, side="right")]
        since = np.searchsorted(up, at - steps, side="right")
        regained = up_total[np.searchsorted(up, at)] - up_total[since]
        return np.asarray(lost - regained, dtype=np.float64)

    def is_calibrating(self, rows: IntArray) -> BoolArray:
        """Which rows lie in a calibration: at or before its last skip, not before its start."""
        if len(rows) == 0:
            return np.zeros(0, dtype=bool)
        part = np.searchsorted(self.starts, rows, side="right") - 1
        return np.asarray(rows <= self.calibration_ends[part], dtype=bool)

    def log2_at(self, row: int) -> float:
        """log2 of the last scale logged at or before a row (the first one's, before it); NaN."""
        return float(self.scales.at(np.array([row]))[0]) if len(self.scales) else float("nan")
