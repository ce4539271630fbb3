"""What the loss scaler did, worked out once a run: its moves, its interval, its routine skips.

A healthy fp16 scaler overflows: in a run of skips while it calibrates at the start, then about
once a growth interval. Rules about loss scaling share this reading of the log, so that all of them
agree on what is routine. Everything looks backwards only: rows that are appended later change
nothing that was said about earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from forensics.diagnose.series import runs_of
from forensics.runlog.schema import SKIP_OTHER
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from forensics.diagnose.signals import Signals

CALIBRATED = 200
"""Clean steps after which the start-up calibration is over: far more than the gaps between its
overflows (0 to 20), far fewer than the growth interval of 1,000 or 2,000 that ends in the next."""
WINDOW = 1000
"""Steps in which skips and octaves are counted, always divided by 1,000: a rate over a window that
is still filling false-alarms in a third of healthy runs or more."""
DEFAULT_INTERVAL = 2000
"""Growth interval of ``torch.amp.GradScaler``, assumed until the log or run.json says otherwise."""
DEFAULT_START = 16.0
"""log2 of GradScaler's initial scale, assumed where no scale is logged."""
UNKNOWN_HYSTERESIS = 2
"""Overflows that one halving may take where nothing says: Megatron's and DeepSpeed's default."""
ZERO_LOG2 = -150.0
"""A scale printed as 0: below the smallest fp32 number, 2^-149."""
_STILL = 1e-3
"""Octaves below which a scale has not moved (a growth factor of 1.001 is none anybody uses)."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Changes of the scale in one direction.

    Attributes:
        rows: row of the step whose ``update()`` made each change, shape (moves,), ascending.
        octaves: how far it went, in powers of two, positive, shape (moves,).
        to_log2: log2 of the scale it led to, shape (moves,).
        adjacent: no step is missing between the two rows compared, shape (moves,).
    """

    rows: IntArray
    octaves: FloatArray
    to_log2: FloatArray
    adjacent: BoolArray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Scaling:
    """The reading of one log.

    Attributes:
        step: step of each row, shape (rows,).
        active: was a loss scaler at work? None where the log cannot tell.
        rows: rows with a usable scale, shape (S,).
        log2: log2 of the scale there, a printed 0 as -150, shape (S,).
        lag: 0 where the scale is logged before ``update()``, 1 where after it.
        falls: the scale's falls.
        growths: the scale's growths.
        skips: rows of lost steps (where no skips are logged, of the falls), shape (K,).
        runs: index into ``skips`` of the first of each run of skips in a row, shape (R,).
        run_lengths: how many skips are in each run, shape (R,).
        calibrating: which of ``skips`` belong to a start-up calibration, shape (K,).
        interval: growth interval; None where neither run.json nor the log tells.
        interval_row: the row from which on the log shows it (0 where run.json says it).
        hysteresis: overflows that one halving takes; None where run.json does not say.
        floor: the least scale by policy; 0 where there is none or none is known.
        starts: rows where the run starts or resumes, ascending; empty in an empty log.
    """

    step: IntArray
    active: bool | None
    rows: IntArray
    log2: FloatArray
    lag: int
    falls: Moves
    growths: Moves
    skips: IntArray
    runs: IntArray
    run_lengths: IntArray
    calibrating: BoolArray
    interval: int | None
    interval_row: int
    hysteresis: int | None
    floor: float
    starts: IntArray

    @property
    def patience(self) -> int:
        """Overflows one halving may take: by policy, else the most that is common."""
        return UNKNOWN_HYSTERESIS if self.hysteresis is None else self.hysteresis

    @property
    def assumed_interval(self) -> int:
        """The growth interval, or GradScaler's default where it is not known."""
        return DEFAULT_INTERVAL if self.interval is None else self.interval

    def scale_log2_at(self, rows: IntArray) -> FloatArray:
        """log2 of the last scale logged at or before each row; GradScaler's start where none is."""
        if len(self.rows) == 0:
            start = 0.0 if self.active is False else DEFAULT_START
            return np.full(len(rows), start)
        at = np.searchsorted(self.rows, rows, side="right") - 1
        return self.log2[np.maximum(at, 0)]

    @cached_property
    def counted(self) -> IntArray:
        """Rows of the skips that no calibration explains."""
        return self.skips[~self.calibrating]

    @cached_property
    def calibrated_from(self) -> int:
        """The first row after the leading calibration's last skip (0 where there is none)."""
        leading = self.skips[self.calibrating]
        later = self.starts[1:2]
        if len(later):
            leading = leading[leading < later[0]]
        return int(leading[-1]) + 1 if len(leading) else 0

    def in_window(self, rows: IntArray, steps: int = WINDOW) -> IntArray:
        """How many of the rows lie in the ``steps`` steps that end at each of them."""
        at = self.step[rows]
        return np.arange(1, len(rows) + 1) - np.searchsorted(at, at - steps, side="right")

    def octaves_in_window(self, moves: Moves, steps: int = WINDOW) -> FloatArray:
        """Octaves that moves of one kind went in the ``steps`` steps that end at each of them."""
        at = self.step[moves.rows]
        total = np.concatenate(([0.0], np.cumsum(moves.octaves)))
        return total[1:] - total[np.searchsorted(at, at - steps, side="right")]

    def is_calibrating(self, rows: IntArray) -> BoolArray:
        """Which rows lie in a calibration: at or before its last skip, not before its start."""
        if not self.calibrating.any():
            return np.zeros(len(rows), dtype=bool)
        ends = self._calibration_ends
        at = np.searchsorted(self.starts, rows, side="right") - 1
        return np.where(at >= 0, rows <= ends[np.maximum(at, 0)], False)

    @cached_property
    def _calibration_ends(self) -> IntArray:
        """Row of the last skip of each start's calibration, or -1; shape (starts,)."""
        leading = self.skips[self.calibrating]
        ends = np.full(len(self.starts), -1, dtype=np.int64)
        np.maximum.at(ends, np.searchsorted(self.starts, leading, side="right") - 1, leading)
        return ends


def analyse(signals: Signals) -> Scaling:
    """Read the scaler's behaviour from a run's log."""
    rows, log2 = _scale_rows(signals)
    starts = _starts(signals, rows, log2)
    lag = _lag(signals, rows, log2)
    falls, growths = _moves(signals, rows, log2, lag)
    active = _active(signals)
    skips, runs, run_lengths = _skips(signals, falls)
    interval, interval_row = _interval(signals, falls, growths, starts)
    policy = signals.policy
    known = policy is not None and policy.enabled
    hysteresis = policy.hysteresis if policy is not None and known else None
    parts = {
        "step": signals.step,
        "skips": skips,
        "starts": starts,
        "caps": _caps(rows, log2, starts, active, hysteresis),
    }
    return Scaling(
        step=signals.step,
        active=active,
        rows=rows,
        log2=log2,
        lag=lag,
        falls=falls,
        growths=growths,
        skips=skips,
        runs=runs,
        run_lengths=run_lengths,
        calibrating=_calibrating(**parts),
        interval=interval,
        interval_row=interval_row,
        hysteresis=hysteresis,
        floor=policy.floor if policy is not None and known else 0.0,
        starts=starts,
    )


def _scale_rows(signals: Signals) -> tuple[IntArray, FloatArray]:
    """Rows with a finite scale that is not negative (a placeholder of -1 is none), and its log2."""
    scale = signals.scale
    rows = np.flatnonzero(np.isfinite(scale) & (scale >= 0))
    values = scale[rows]
    tiny = values <= 2.0**ZERO_LOG2
    return rows, np.where(tiny, ZERO_LOG2, np.log2(np.where(tiny, 1.0, values)))


def _active(signals: Signals) -> bool | None:
    """Was a loss scaler at work? A log without a scale tells only where run.json does."""
    policy = signals.policy
    if signals.scaler_active or (policy is not None and policy.enabled):
        return True
    stated = signals.run.manifest is not None and signals.run.manifest.precision
    if stated in ("fp32", "bf16") or signals.has("scaler_scale"):
        return False
    return None


def _starts(signals: Signals, rows: IntArray, log2: FloatArray) -> IntArray:
    """Rows where a run starts or resumes: the first, each segment's, and each jump upwards."""
    if len(signals) == 0:
        return np.empty(0, dtype=np.int64)
    manifest = signals.run.manifest
    begun = [segment.start_step for segment in manifest.segments] if manifest is not None else []
    segments = np.searchsorted(signals.step, np.array(begun, dtype=np.int64))
    jumps = rows[1:][np.diff(log2) > _jump(signals)]
    found = np.unique(np.concatenate(([0], segments, jumps))).astype(np.int64)
    return found[found < len(signals)]


def _jump(signals: Signals) -> float:
    """Octaves upwards in one go that no growth makes: the scaler was set anew."""
    policy = signals.policy
    factor = policy.growth_factor if policy is not None and policy.enabled else 2.0
    return 1.5 * float(np.log2(max(factor, 2.0)))


def _lag(signals: Signals, rows: IntArray, log2: FloatArray) -> int:
    """Is the scale of a row the one before ``update()`` (0) or after it (1)?

    Our own record logs it before. Elsewhere the first fall decides of which only one of the two
    rows it lies between was an overflow.
    """
    if signals.run.manifest is not None or len(rows) < 2:
        return 0
    overflow = signals.skipped | signals.norm_bad | signals.loss_bad
    before, after = rows[:-1], rows[1:]
    fell = (np.diff(log2) < -_STILL) & (np.diff(signals.step[rows]) == 1)
    decisive = np.flatnonzero(fell & (overflow[before] != overflow[after]))
    return int(overflow[after[decisive[0]]]) if len(decisive) else 0


def _moves(signals: Signals, rows: IntArray, log2: FloatArray, lag: int) -> tuple[Moves, Moves]:
    """The falls and the growths."""
    change = np.diff(log2)
    cause = rows[1:] if lag else rows[:-1]

    def moves(chosen: BoolArray) -> Moves:
        at = np.flatnonzero(chosen)
        gap = signals.step[rows[at + 1]] - signals.step[rows[at]]
        return Moves(cause[at], np.abs(change[at]), log2[at + 1], gap == 1)

    return moves(change < -_STILL), moves(change > _STILL)


def _skips(signals: Signals, falls: Moves) -> tuple[IntArray, IntArray, IntArray]:
    """Rows of lost steps, and their runs; rows that do not say leave a run whole."""
    said = signals.present("skipped")
    if not said.any():
        skipped = np.zeros(len(signals), dtype=bool)
        skipped[falls.rows] = True
        said = np.broadcast_to(np.True_, skipped.shape)
    else:
        skipped = signals.skipped & said
    first, last = runs_of(skipped[said])
    lengths = last - first + 1
    return np.flatnonzero(skipped), np.cumsum(lengths) - lengths, lengths


def _caps(
    rows: IntArray,
    log2: FloatArray,
    starts: IntArray,
    active: bool | None,
    hysteresis: int | None,
) -> FloatArray:
    """The most skips each start's calibration may take: log2 of the scale it starts at, and h."""
    patience = UNKNOWN_HYSTERESIS if hysteresis is None else hysteresis
    if active is False:
        return np.zeros(len(starts))
    if len(rows) == 0:
        return np.full(len(starts), 2 * DEFAULT_START + patience)  # Megatron starts at 2^32
    at = np.minimum(np.searchsorted(rows, starts), len(rows) - 1)
    return np.maximum(log2[at], 0.0) + patience


def _calibrating(step: IntArray, skips: IntArray, starts: IntArray, caps: FloatArray) -> BoolArray:
    """Which skips belong to a calibration: before 200 clean steps, and not more than its cap."""
    if len(skips) == 0:
        return np.zeros(0, dtype=bool)
    part = np.searchsorted(starts, skips, side="right") - 1
    first = np.searchsorted(skips, starts)
    order = np.arange(len(skips)) - first[part]
    before = np.where(order > 0, step[skips[np.maximum(np.arange(len(skips)) - 1, 0)]], 0)
    before = np.where(order > 0, before, step[starts[part]])
    broken = np.cumsum(step[skips] - before > CALIBRATED)
    earlier = np.where(first > 0, broken[np.maximum(first - 1, 0)], 0)
    return (broken == earlier[part]) & (order < caps[part])


def _interval(
    signals: Signals, falls: Moves, growths: Moves, starts: IntArray
) -> tuple[int | None, int]:
    """The growth interval, and the row from which on the log shows it.

    By run.json, else the first distance from an event (skip or move) to the next growth that
    comes twice. Only stretches in which every step is logged count, and the first growth after a
    start does not: the scaler may have come with a count of its own.
    """
    policy = signals.policy
    if policy is not None and policy.enabled:
        return policy.growth_interval, 0
    distances, rows = growth_distances(signals, falls, growths, starts)
    order = np.argsort(distances, kind="stable")
    again = order[1:][np.diff(distances[order]) == 0]
    if len(again) == 0:
        return None, 0
    return int(distances[again.min()]), int(rows[again.min()])


def growth_distances(
    signals: Signals, falls: Moves, growths: Moves, starts: IntArray
) -> tuple[IntArray, IntArray]:
    """Steps from the last event to each growth, and the growths' rows; shape (judged growths,)."""
    skips = np.flatnonzero(signals.skipped & ~spared(signals))
    events = np.unique(np.concatenate((falls.rows, growths.rows, skips)))
    at = np.searchsorted(events, growths.rows) - 1
    known = (at >= 0) & growths.adjacent
    rows, last = growths.rows[known], events[np.maximum(at[known], 0)]
    step = signals.step
    whole = (step[rows] - step[last] == rows - last) & (
        np.searchsorted(starts, rows, side="right") == np.searchsorted(starts, last, side="right")
    )
    return (step[rows] - step[last])[whole], rows[whole]


def spared(signals: Signals) -> BoolArray:
    """Skips that need no halving: of a non-finite loss, or a guard's; shape (rows,)."""
    return (
        signals.skipped_for_loss
        | (signals.skipped & signals.loss_bad)
        | signals.reason_starts(SKIP_OTHER)
    )
