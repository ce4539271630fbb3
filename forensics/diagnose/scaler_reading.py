"""How the log of a loss scaler is read: which rows fell, skipped, calibrated, and at what lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.blocks import mask_where, moved, rows_where
from forensics.diagnose.finite import KeptRows
from forensics.diagnose.scaling import (
    DEFAULT_START,
    UNKNOWN_HYSTERESIS,
    WRITTEN,
    Moves,
    ScaleLog,
    Scaling,
    SkipRuns,
)
from forensics.diagnose.series import merged, runs_of
from forensics.runlog.manifest import ScalerPolicy
from forensics.runlog.schema import SKIP_OTHER
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from forensics.diagnose.signals import Signals

CALIBRATED = 200
"""Clean steps after which the start-up calibration is over: far more than the gaps between its
overflows (0 to 20), far fewer than the growth interval of 1,000 or 2,000 that ends in the next."""
LEAST_RUN = 10
"""Skips in a row that are an alarm at any scale: the longest run of 20 healthy simulations of
20,000 steps is 9."""
MOST_JUMPS = 3
"""Jumps of the scale that are taken for a resume; more of them are a fault of their own."""
ZERO_LOG2 = -150.0
"""A scale printed as 0: below the smallest fp32 number, 2^-149."""
_STILL = 1e-3
"""Octaves below which a scale has not moved (nobody uses a growth factor of 1.0007)."""


def read_scaler(signals: Signals) -> Scaling:
    """The scaler's behaviour in a run's log."""
    policy = signals.policy
    if policy is not None and not policy.enabled:
        policy = None
    scales = _scale_log(signals)
    starts = _starts(signals, policy, scales)
    lag_from = _lag_from(signals, scales)
    falls, growths = _moves(signals, scales, lag_from)
    active = _active(signals, policy)
    patience = policy.hysteresis if policy is not None else UNKNOWN_HYSTERESIS
    caps = _caps(scales, starts, active, patience)
    written = _written(signals, policy, falls)
    own = falls.where(~written)
    skipped, said = _skipped(signals, own)
    skips = np.flatnonzero(skipped)
    sparse = signals.counts_steps
    lost = np.maximum(signals.lost_steps[skips], 1) if sparse else np.ones_like(skips)
    # A row of many steps is part of a run only where none of them was taken.
    whole = signals.skipped if sparse else skipped
    calibrating = _calibrating(signals.step, skips, starts, caps, lost)
    leading = np.zeros(len(signals), dtype=bool)
    leading[skips[calibrating]] = True
    limits = _Limits(scales, starts, caps, active, policy.hysteresis if policy else 1)
    interval, interval_row = _interval(signals, policy, falls, growths, starts)
    return Scaling(
        step=signals.step,
        active=active,
        scales=scales,
        lag_from=lag_from,
        falls=falls,
        written=written,
        growths=growths,
        starts=starts,
        skips=skips,
        lost=lost,
        calibrating=calibrating,
        calibration_ends=_calibration_ends(signals.step, skips, own, starts, caps),
        runs=_runs(whole, said, leading, limits, signals.lost_steps if sparse else None),
        routine=_routine(signals, falls, active, starts, limits),
        interval=interval,
        interval_row=interval_row,
        hysteresis=policy.hysteresis if policy is not None else None,
        floor=policy.floor if policy is not None else _told_floor(signals),
    )


def spared(signals: Signals) -> BoolArray:
    """Skips that need no halving: of a non-finite loss, or a guard's; shape (rows,)."""
    for_loss = signals.skipped_for_loss | (signals.skipped & signals.loss_bad)
    return np.asarray(for_loss | signals.reason_starts(SKIP_OTHER), dtype=bool)


def _told_floor(signals: Signals) -> float:
    """The least scale as a foreign log's trainer has it; 0 where it is not known."""
    facts = signals.table.facts
    hints = facts.scaler if facts is not None else None
    return hints.floor if hints is not None and hints.floor is not None else 0.0


def growth_distances(
    signals: Signals, falls: Moves, growths: Moves, starts: IntArray
) -> tuple[IntArray, IntArray]:
    """Steps from the last event (skip or move) to each growth, and the growths' rows.

    Only stretches in which every step is logged count, and the first growth after a start does
    not: the scaler may have come with a count of its own.
    """
    skips = np.flatnonzero(signals.skipped & ~spared(signals))
    events = merged(falls.rows, growths.rows, skips)
    at = np.searchsorted(events, growths.rows) - 1
    known = (at >= 0) & growths.adjacent
    rows, last = growths.rows[known], events[at[known]]
    distance = signals.step[rows] - signals.step[last]
    one_start = _part_of(starts, rows) == _part_of(starts, last)
    whole = (distance == rows - last) & one_start
    return distance[whole], rows[whole]


def _scale_log(signals: Signals) -> ScaleLog:
    """The scale where it is finite and not negative (a placeholder of -1 is none)."""
    scale, count = signals.scale, len(signals)
    usable = mask_where(count, lambda at: np.isfinite(scale[at]) & (scale[at] >= 0))

    def differs(at: slice) -> BoolArray:
        after = moved(at, 1)
        new = usable[after] & (scale[after] != scale[at])
        return np.asarray(new | (usable[after] != usable[at]), dtype=bool)

    edges = rows_where(count - 1, differs) + 1
    first = np.concatenate((np.arange(min(count, 1)), edges))
    last = np.append(edges, count)[: len(first)] - 1
    first, last = first[usable[first]], last[usable[first]]
    levels = scale[first]
    tiny = levels <= 2.0**ZERO_LOG2
    log2 = np.where(tiny, ZERO_LOG2, np.log2(np.where(tiny, 1.0, levels)))
    return ScaleLog(first, last, log2)


def _active(signals: Signals, policy: ScalerPolicy | None) -> bool | None:
    """Was a loss scaler at work? A log without a scale tells only where its precision is known."""
    if signals.scaler_active or policy is not None:
        return True
    manifest, facts = signals.run.manifest, signals.table.facts
    without = any(known and known.precision in ("fp32", "bf16") for known in (manifest, facts))
    return False if without or signals.has("scaler_scale") else None


def _starts(signals: Signals, policy: ScalerPolicy | None, scales: ScaleLog) -> IntArray:
    """Rows where a run starts or resumes: the first, each segment's, and the first jumps up."""
    if len(signals) == 0:
        return np.empty(0, dtype=np.int64)
    manifest = signals.run.manifest
    begun = [segment.start_step for segment in manifest.segments] if manifest is not None else []
    segments = np.searchsorted(signals.step, np.array(begun, dtype=np.int64))
    growth = np.log2(max(policy.growth_factor, 2.0)) if policy is not None else 1.0
    gap = signals.step[scales.first[1:]] - signals.step[scales.last[:-1]]
    jumps = scales.first[1:][(np.diff(scales.log2) > 1.5 * growth) & (gap == 1)][:MOST_JUMPS]
    found = merged(np.array([0]), segments, jumps)
    return found[found < len(signals)]


def _part_of(starts: IntArray, rows: IntArray) -> IntArray:
    """Which start each row belongs to."""
    return np.asarray(np.searchsorted(starts, rows, side="right") - 1, dtype=np.int64)


def _lag_from(signals: Signals, scales: ScaleLog) -> int:
    """The row from which on the scale of a row is the one after ``update()``.

    Our own record logs it before. Elsewhere the first fall decides of which only one of the two
    rows it lies between was an overflow; until then it is taken to be logged before.
    """
    never = len(signals)
    own = signals.run.manifest is not None and signals.table.source_format == "forensics"
    if own:
        return never
    change = np.diff(scales.log2)
    falls = np.flatnonzero((change < -_STILL) & (change > -WRITTEN))
    before, after = scales.last[falls], scales.first[falls + 1]
    overflow = signals.skipped | signals.norm_bad | signals.loss_bad
    one_step = signals.step[after] - signals.step[before] == 1
    decisive = np.flatnonzero(one_step & (overflow[before] != overflow[after]))
    return int(after[decisive[0]]) if len(decisive) and overflow[after[decisive[0]]] else never


def _moves(signals: Signals, scales: ScaleLog, lag_from: int) -> tuple[Moves, Moves]:
    """The falls and the growths."""
    change = np.diff(scales.log2)

    def moves(at: IntArray) -> Moves:
        before, into = scales.last[at], scales.first[at + 1]
        cause = np.where(into >= lag_from, into, before)
        one_step = signals.step[into] - signals.step[before] == 1
        return Moves(cause, into, np.abs(change[at]), scales.log2[at + 1], one_step)

    return moves(np.flatnonzero(change < -_STILL)), moves(np.flatnonzero(change > _STILL))


def _written(signals: Signals, policy: ScalerPolicy | None, falls: Moves) -> BoolArray:
    """Which falls no overflow made, shape (falls,): too far for a backoff, in a sound step."""
    far = WRITTEN if policy is None else max(WRITTEN, -1.5 * float(np.log2(policy.backoff_factor)))
    norm, at = signals.norm, falls.rows
    sound = np.isfinite(norm[at]) & ~signals.loss_bad[at] & ~signals.skipped[at]
    return np.asarray(falls.adjacent & (falls.octaves > far) & sound, dtype=bool)


def _skipped(signals: Signals, falls: Moves) -> tuple[BoolArray, BoolArray]:
    """Which rows are lost steps, and which say so.

    A fall from one step to the next is an overflow even where the column does not say so: a fused
    optimizer skips inside its kernel, and many logs have no such column.
    """
    said = signals.skips_known
    skipped = (signals.lost_steps > 0 if signals.counts_steps else signals.skipped) & said
    if not said.any():
        skipped[falls.rows] = True
        return skipped, np.broadcast_to(np.True_, skipped.shape)
    skipped[falls.rows[falls.adjacent]] = True
    return skipped, said | skipped


def _caps(scales: ScaleLog, starts: IntArray, active: bool | None, patience: int) -> FloatArray:
    """The most skips each start's calibration may take: log2 of the scale it starts at, and h."""
    if active is False:
        return np.zeros(len(starts))
    if len(scales) == 0:
        return np.full(len(starts), 2 * DEFAULT_START + patience)  # Megatron starts at 2^32
    return np.asarray(np.maximum(scales.since(starts), 0.0) + patience)


def _calibrating(
    step: IntArray,
    skips: IntArray,
    starts: IntArray,
    caps: FloatArray,
    lost: IntArray | None = None,
) -> BoolArray:
    """Which skips belong to a calibration: before 200 clean steps, and not more than its cap.

    ``lost`` is how many lost steps each of them is, one where it is not given.
    """
    if len(skips) == 0:
        return np.zeros(0, dtype=bool)
    part = _part_of(starts, skips)
    first = np.searchsorted(skips, starts)
    total = np.concatenate(([0], np.cumsum(np.ones_like(skips) if lost is None else lost)))
    order = total[:-1] - total[first[part]]
    clean = np.diff(step[skips], prepend=step[skips[0]])
    clean = np.where(order > 0, clean, step[skips] - step[starts[part]])
    ended = np.cumsum(clean > CALIBRATED)
    ended_before = np.concatenate(([0], ended))[first]
    return np.asarray((ended == ended_before[part]) & (order < caps[part]), dtype=bool)


def _calibration_ends(
    step: IntArray, skips: IntArray, falls: Moves, starts: IntArray, caps: FloatArray
) -> IntArray:
    """Row of the last skip or fall of each start's calibration, or -1; shape (starts,)."""
    events = merged(skips, falls.rows)
    leading = events[_calibrating(step, events, starts, caps)]
    ends = np.full(len(starts), -1, dtype=np.int64)
    np.maximum.at(ends, _part_of(starts, leading), leading)
    return ends


class _Limits:
    """The length at which a run of lost steps is more than a scaler's routine."""

    def __init__(
        self,
        scales: ScaleLog,
        starts: IntArray,
        caps: FloatArray,
        active: bool | None,
        hysteresis: int,
    ) -> None:
        self.scales, self.starts, self.caps = scales, starts, caps
        self.unlogged = 0.0 if active is False else DEFAULT_START
        self.hysteresis = hysteresis

    def at(self, first: IntArray, calibrating: BoolArray) -> FloatArray:
        """The limit of runs that begin at these rows, and while calibrating or not."""
        logged = len(self.scales) > 0
        scale = self.scales.at(first) if logged else np.full(len(first), self.unlogged)
        limit = np.maximum(np.ceil(scale) + self.hysteresis, LEAST_RUN)
        cap = self.caps[_part_of(self.starts, first)] if len(first) else np.empty(0)
        return np.asarray(np.where(calibrating, np.maximum(limit, cap + 1), limit))


def _runs(
    lost: BoolArray,
    said: BoolArray,
    leading: BoolArray,
    limits: _Limits,
    lost_steps: NDArray[np.integer[Any]] | None = None,
) -> SkipRuns:
    """The runs of lost rows among the rows that say; each row one step, or ``lost_steps``."""
    rows = KeptRows.of(said)
    first, last = runs_of(rows.of_column(lost))
    starts = rows[first]
    limit = limits.at(starts, leading[starts])
    if lost_steps is None:
        return SkipRuns(starts, rows[last], last - first + 1, limit)
    total = np.concatenate(([0], np.cumsum(np.where(lost & said, lost_steps, 0))))
    return SkipRuns(starts, rows[last], total[rows[last] + 1] - total[starts], limit)


def _routine(
    signals: Signals, falls: Moves, active: bool | None, starts: IntArray, limits: _Limits
) -> BoolArray:
    """Rows whose non-finite norm is an overflow that the scaler dealt with, shape (rows,).

    The loss is finite, the scale is 1 or more, and the run of lost steps it is in is shorter than
    its limit and over: no weight took the gradient, or nothing after it would be finite. Where the
    log ends in such a run the step must be skipped, as far as the log tells.
    """
    if active is False or not signals.norm_bad.any():
        return np.zeros(len(signals), dtype=bool)
    lost = signals.norm_bad | signals.skipped
    said = signals.present("grad_l2_pre_clip") | signals.skips_known
    rows = np.flatnonzero(lost)
    leading = np.zeros(len(signals), dtype=bool)
    leading[rows] = _calibrating(signals.step, rows, starts, limits.caps)
    runs = _runs(lost, said, leading, limits)
    # A scale that falls while no skip is ever logged: the column does not mean what it says.
    mute = not signals.skipped.any() and len(falls) > 0
    skipped = signals.skipped | ~signals.skips_known | mute
    skipped[falls.rows] = True
    taken = np.flatnonzero(signals.norm_bad & ~skipped)
    some_taken = np.searchsorted(taken, runs.last + 1) > np.searchsorted(taken, runs.first)
    open_end = runs.last == (np.flatnonzero(said[rows[-1] :])[-1] + rows[-1])
    fine = ~runs.too_long & ~(open_end & some_taken)
    overflows = np.flatnonzero(signals.norm_bad & ~signals.loss_bad)
    run = np.searchsorted(runs.first, overflows, side="right") - 1
    explained = (run >= 0) & (overflows <= runs.last[run]) & fine[run]
    scale = signals.scale[overflows]
    routine = np.zeros(len(signals), dtype=bool)
    routine[overflows[explained & ~((scale >= 0) & (scale < 1))]] = True
    return routine


def _interval(
    signals: Signals,
    policy: ScalerPolicy | None,
    falls: Moves,
    growths: Moves,
    starts: IntArray,
) -> tuple[int | None, int]:
    """The growth interval, and the row from which on the log shows it.

    By run.json, else the first distance from an event to the next growth that comes twice.
    """
    if policy is not None:
        return policy.growth_interval, 0
    distances, rows = growth_distances(signals, falls, growths, starts)
    order = np.argsort(distances, kind="stable")
    again = order[1:][np.diff(distances[order]) == 0]
    if len(again) == 0:
        return None, 0
    return int(distances[again.min()]), int(rows[again.min()])
