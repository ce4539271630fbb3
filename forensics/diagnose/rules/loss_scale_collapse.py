"""The loss scale falls and does not come back.

What it detects
    A descent of the loss scale: below 1; by 10 octaves or more outside the calibration, with no
    growth in it and none after it; or down to its floor with steps still being skipped there; or a
    scale below 1 in all of the log. It tells where the scale passed 2^-128, or the step at which it
    would at this pace. Where the trainer's floor is below 1 (fairseq sums the loss over tokens, and
    stops at 0.0001), four octaves above that floor take the place of 1. One finding an episode.

Why it matters
    A scale below 1 shrinks gradients that already fit, so scaling is not what is wrong. There is no
    floor in GradScaler: at 2^-128 the inverse scale is Inf in fp32, no overflow is seen any more,
    and the scaler itself writes NaN into the weights.

Evidence
    The scale before the descent, on its way and at its end.

Silent when
    The scaler calibrates at the start, or falls and grows about once a growth interval.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.scaler_reading import ZERO_LOG2
from forensics.diagnose.scaling import POISON_LOG2, WINDOW, Scaling
from forensics.diagnose.series import merged, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, steps, times
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

DECLINE = 20
"""Growth intervals in which a scale that declines loses an octave: in health it is back in one."""
SAWTOOTH = 2.0
"""Octaves that a healthy scale moves up and down; a decline has to have lost more."""
LARGE_PART = 0.33
"""Share of all octaves that a decline lost before its last descent; else that descent is all."""
ABOVE_FLOOR = 4.0
"""Octaves above a floor below 1 in which four overflows in a row end the run."""
USUAL_INTERVAL = 1000
"""Growth interval where neither run.json nor the log shows it."""


@dataclass(frozen=True)
class Thresholds:
    """When a descent is a collapse."""

    octaves: float = threshold(10.0, "20 simulated seeds of 20,000 steps lose up to 9 in a row")
    at_floor: int = threshold(4, "skips in 1,000 steps at the floor: four halvings in vain")
    quiet: float = threshold(6.0, "times the median gap: 4 of 1,000 chance gaps are longer")


@rule(thresholds=Thresholds, needs=("scaler_scale",))
def loss_scale_collapse(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of collapse."""
    scaling = signals.scaling
    if not scaling.active or len(scaling.scales) == 0:
        return
    floor_rows = _skips_at_floor(signals, thresholds.at_floor)
    rows = merged(_collapsing(scaling, thresholds.octaves), floor_rows)
    if len(rows) == 0 and float(scaling.scales.log2.max()) < _sound(scaling):
        yield _low_throughout(signals)
    for start, last in _stretches(signals, rows, thresholds):
        at_floor = int(((floor_rows >= start) & (floor_rows <= last)).sum())
        yield _finding(signals, start, last, at_floor)


def _stretches(signals: Signals, rows: IntArray, thresholds: Thresholds) -> list[tuple[int, int]]:
    """First and last row of each collapse; episodes of one long decline are one."""
    found: list[tuple[int, int]] = []
    for episode in told_episodes(signals.step[rows], WINDOW):
        first, last = (int(r) for r in np.searchsorted(signals.step, (episode.first, episode.last)))
        start = _start(signals.scaling, signals.step, first, last, thresholds.quiet)
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, last))
    return found


def _descents(scaling: Scaling) -> IntArray:
    """Which descent each fall belongs to: a growth ends one; shape (falls,)."""
    before = np.searchsorted(scaling.growths.rows, scaling.falls.rows)
    return np.asarray(before, dtype=np.int64)


def _collapsing(scaling: Scaling, octaves: float) -> IntArray:
    """Rows of the falls that lead below 1, or lie deep in a descent that no growth followed."""
    falls = scaling.falls
    if len(falls) == 0:
        return falls.rows
    lost = np.where(scaling.is_calibrating(falls.rows), 0.0, falls.octaves)
    total = np.cumsum(lost)
    descent = _descents(scaling)
    begins = np.searchsorted(descent, descent)
    in_descent = total - (total - lost)[begins]
    deep = (in_descent >= octaves) & (falls.rows > scaling.growths.rows.max(initial=-1))
    return np.asarray(falls.rows[(falls.to_log2 < _sound(scaling)) | deep], dtype=np.int64)


def _sound(scaling: Scaling) -> float:
    """log2 of the least scale that tells of nothing: 1, or four octaves above a floor below 1."""
    return float(np.log2(scaling.floor)) + ABOVE_FLOOR if 0 < scaling.floor < 1 else 0.0


def _skips_at_floor(signals: Signals, least: int) -> IntArray:
    """Rows of skips at which the scale is at its floor and stays, several in 1,000 steps."""
    scaling = signals.scaling
    skips = np.flatnonzero(signals.skipped)
    at = skips[signals.scale_log2(skips) <= _floor(scaling)]
    stuck = at[~np.isin(at, scaling.falls.rows)]
    enough = stuck[scaling.in_window(stuck) >= least]
    if len(enough) == 0:
        return enough
    # The first three of each such stretch belong to it too.
    reach = np.searchsorted(enough, stuck, side="left")
    following = enough[np.minimum(reach, len(enough) - 1)]
    near = (signals.step[following] - signals.step[stuck] < WINDOW) & (reach < len(enough))
    return stuck[near]


def _floor(scaling: Scaling) -> float:
    """log2 of the scale below which none should fall: the policy's floor, else 1."""
    return float(np.log2(scaling.floor)) if scaling.floor > 0 else 0.0


def _start(scaling: Scaling, step: IntArray, row: int, last: int, quiet: float) -> int:
    """Where the descent began that leads to a row, the first of an episode that ends at ``last``.

    Back over its falls, up to a stretch of quiet that is long beside the gaps between them.
    """
    start = scaling.run_start(row)
    if start != row:
        return start
    return _slow_start(scaling, step, _descent_start(scaling, step, row, quiet), last)


def _slow_start(scaling: Scaling, step: IntArray, row: int, last: int) -> int:
    """Where a decline that growths interrupt began, which leads to the descent at a row.

    Back over stretches of twenty growth intervals, while the highest scale of each lies an octave
    above that of the stretch after it; then to the last row near the top.
    """
    known = scaling.interval is not None and row >= scaling.interval_row
    stretch = DECLINE * (scaling.interval if known and scaling.interval else USUAL_INTERVAL)
    calibrated = scaling.skips[scaling.calibrating & (scaling.skips < row)]
    begin = int(calibrated[-1]) + 1 if len(calibrated) else 0
    at, top = row, _highest(scaling, row, row)
    while at > begin:
        before = max(begin, int(np.searchsorted(step, step[at] - stretch)))
        higher = _highest(scaling, before, at)
        if not higher >= top + 1.0:
            break
        at, top = before, higher
    grown = scaling.growths.rows[scaling.growths.rows < row]
    lost = top - _highest(scaling, int(grown[-1]) + 1 if len(grown) else begin, row)
    lowest = float(scaling.scales.within(row, last + 1).log2.min(initial=np.inf))
    if lost < SAWTOOTH or lost < LARGE_PART * (top - lowest):
        return row
    inside = scaling.scales.within(at, row - 1)
    return int(inside.last[inside.log2 >= top - 0.5][-1])


def _highest(scaling: Scaling, first: int, last: int) -> float:
    """The highest scale (log2) logged in some rows; -inf where there is none."""
    return float(scaling.scales.within(first, last).log2.max(initial=-np.inf))


def _descent_start(scaling: Scaling, step: IntArray, row: int, quiet: float) -> int:
    """Where the falls without a growth between them began."""
    falls = scaling.falls.rows
    grown = int(np.searchsorted(scaling.growths.rows, row))
    since = int(scaling.growths.rows[grown - 1]) if grown else -1
    mine = falls[(falls <= row) & (falls > since)]
    if len(mine) == 0:
        return row
    # The pace is that of the falls from here on: those before may be the routine's.
    until = scaling.growths.rows[grown] if grown < len(scaling.growths) else len(step)
    coming = falls[(falls > row) & (falls < until) & (step[falls] <= step[row] + WINDOW)][:10]
    pace = np.diff(step[np.concatenate((mine, coming))])[-10:]
    gaps = np.diff(step[mine])
    long = np.flatnonzero(gaps > max(20.0, quiet * float(np.median(pace)))) if len(gaps) else gaps
    return int(mine[long[-1] + 1]) if len(long) else int(mine[0])


def _finding(signals: Signals, start: int, last: int, at_floor: int) -> Finding:
    scaling = signals.scaling
    later = scaling.growths.rows[scaling.growths.rows > last]
    end = int(later[0]) if len(later) else len(signals) - 1
    rows, log2 = scaling.scales.within(start, end).spelled_out()
    if len(rows) == 0:
        rows, log2 = scaling.scales.last[-1:], scaling.scales.log2[-1:]
    lowest = float(log2.min())
    by_hand = bool(scaling.written[scaling.falls.rows == start].any())
    poison = rows[log2 <= POISON_LOG2]
    return Finding(
        rule="loss-scale-collapse",
        severity=_severity(lowest, at_floor),
        message=_message(signals, rows, log2, at_floor, recovers=len(later) > 0, by_hand=by_hand),
        first_step=signals.step_at(start),
        last_step=signals.step_at(end),
        evidence=(
            signals.evidence(
                "scaler_scale",
                signals.scale,
                np.concatenate((rows[:1], rows[:: max(1, len(rows) // 8)], poison[:1], rows[-1:])),
                threshold=_limit(scaling, lowest),
            ),
        ),
        cause=_WRITTEN_CAUSE if by_hand else _cause(signals, start, end),
        remedy=_written_remedy(signals, start) if by_hand else _remedy(signals, lowest),
    )


def _low_throughout(signals: Signals) -> Finding:
    """The finding of a scale that was low when the log began."""
    scales = signals.scaling.scales
    lowest = float(scales.log2.min())
    highest = float(scales.log2.max())
    text = "below 2^-149" if highest <= ZERO_LOG2 else f"at most {_scale(highest)}"
    poisoned = ", where 1/scale is Inf" if highest <= POISON_LOG2 else ""
    return Finding(
        rule="loss-scale-collapse",
        severity=Severity.CRITICAL if lowest <= POISON_LOG2 else Severity.WARNING,
        message=f"loss scale is {text} in all of the log{poisoned}: it collapsed before",
        first_step=signals.step_at(int(scales.first[0])),
        last_step=signals.step_at(int(scales.last[-1])),
        evidence=(
            signals.evidence(
                "scaler_scale",
                signals.scale,
                np.unique([scales.first[0], scales.last[-1]]),
                threshold=1.0,
            ),
        ),
        cause=_cause(signals, 0, len(signals) - 1),
        remedy=_remedy(signals, lowest),
    )


def _limit(scaling: Scaling, lowest: float) -> float:
    """The scale that must not be reached: a floor at which the run ends, 2^-128, or 1."""
    if 0 < scaling.floor < 1:
        return scaling.floor
    return 2.0**POISON_LOG2 if lowest < 0 else 1.0


def _severity(lowest: float, at_floor: int) -> Severity:
    if lowest <= POISON_LOG2:
        return Severity.CRITICAL
    return Severity.ERROR if lowest < 0 or at_floor else Severity.WARNING


def _message(
    signals: Signals,
    rows: IntArray,
    log2: FloatArray,
    at_floor: int,
    *,
    recovers: bool,
    by_hand: bool,
) -> str:
    bottom = int(np.argmin(log2))
    grown = int((np.diff(log2[: bottom + 1]) > 0).sum())
    growths = f", though it grew {times(grown)} in between" if grown else " without one growth"
    text = (
        f"loss scale fell from {power_of_two(2.0 ** float(log2[0]))} at step "
        f"{signals.step_at(int(rows[0])):,} to {_scale(float(log2[bottom]))} at "
        f"{signals.step_at(int(rows[bottom])):,}{growths}"
    )
    if at_floor and float(log2[bottom]) >= _floor(signals.scaling):
        text = (
            f"loss scale fell from {power_of_two(2.0 ** float(log2[0]))} at step "
            f"{signals.step_at(int(rows[0])):,} to its floor of {_scale(float(log2[bottom]))}, "
            f"reached at {signals.step_at(int(rows[bottom])):,}: {steps(at_floor)} "
            f"{'was' if at_floor == 1 else 'were'} still skipped there"
            if bottom
            else f"loss scale is at its floor of {_scale(float(log2[bottom]))} and "
            f"{steps(at_floor)} {'was' if at_floor == 1 else 'were'} still skipped there, from "
            f"step {signals.step_at(int(rows[0])):,} on"
        )
    if by_hand:
        text = (
            f"loss scale was set from {power_of_two(2.0 ** float(log2[0]))} to "
            f"{_scale(float(log2[1]))} after step {signals.step_at(int(rows[0])):,}, in one step "
            f"and without an overflow"
        )
    poison = np.flatnonzero(log2 <= POISON_LOG2)
    if len(poison):
        at = signals.step_at(int(rows[poison[0]]))
        return f"{text}; from {at:,} on it is at most 2^-128, where 1/scale is Inf"
    if at_floor or recovers:
        return text
    if 0 < signals.scaling.floor < 1:
        return f"{text}; below {number(signals.scaling.floor)} the trainer ends the run"
    projected = _projected(signals, rows, log2)
    return f"{text}; at this pace it reaches 2^-128 at step {projected:,}" if projected else text


_WRITTEN_CAUSE = (
    "No scaler lowers its scale so far in one step, and nothing overflowed: something else wrote "
    "it (scaler.update(new_scale), a state that was loaded, a schedule of the scale, a scaler of "
    "one's own)."
)


def _written_remedy(signals: Signals, start: int) -> str:
    return (
        f"Look for what sets the scale after step {signals.step_at(start):,}, and let "
        f"scaler.update() alone move it. At 0 the loss is multiplied away and 1/scale is Inf: "
        f"resume from before that step with the scale it had."
    )


def _scale(log2: float) -> str:
    return "0" if log2 <= ZERO_LOG2 else power_of_two(2.0**log2)


def _projected(signals: Signals, rows: IntArray, log2: FloatArray) -> int | None:
    """The step at which a descent that still goes on reaches 2^-128; None where it has stopped."""
    if signals.scaling.floor > 0:
        return None
    falls = np.flatnonzero(np.diff(log2) < 0)[-20:]
    if len(falls) < 2:
        return None
    at = signals.step[rows[falls]]
    per_step = float(log2[falls[0]] - log2[falls[-1]]) / float(at[-1] - at[0])
    quiet = signals.last_step - int(at[-1])
    if per_step <= 0 or quiet > 3 / per_step + 1:
        return None
    return signals.last_step + int(np.ceil((float(log2[-1]) - POISON_LOG2) / per_step))


def _mostly(flags: BoolArray) -> bool:
    return bool(len(flags)) and bool(flags.mean() > 0.5)


def _cause(signals: Signals, start: int, end: int) -> str:
    skips = signals.scaling.skips
    skips = skips[(skips >= start) & (skips <= end)]
    if _mostly(signals.loss_bad[skips]):
        return (
            "The loss itself is non-finite, so every step is skipped and halved in vain: the scale "
            "is applied after the loss and cannot help."
        )
    if (signals.norm_bad[skips] & (signals.scale[skips] <= 1.0)).any():
        return (
            "Gradients are non-finite at a scale of 1 and below, so no overflow of scaling made "
            "them: an operation of backward is undefined, or values overflow in forward."
        )
    return "Ever more of the scaled gradients overflow: activations or gradients grow."


def _remedy(signals: Signals, lowest: float) -> str:
    if signals.precision in ("fp32", "bf16"):
        return f"In {signals.precision} no loss scale is needed: switch the scaler off."
    first = (
        "Scaler settings do not help: precision is the limit"
        if lowest <= 0
        else "Find what grows (params shows which layer)"
    )
    stop = "give the scale a floor of 1 and stop there."
    if 0 < signals.scaling.floor < 1:  # the trainer does stop, and a scale below 1 is usual in it
        stop = "a lower learning rate or a clip helps where the gradients grow."
    return (
        f"{first}. Run in bf16 where the device has it, or keep the layer that overflows in fp32; "
        f"{stop}"
    )
