"""Too many steps are skipped: an alarm.

What it detects
    More skips in the last 1,000 steps than a healthy loss scaler makes: 20, or four times its
    hysteresis per growth interval where that is more; 10 octaves of loss scale lost in 1,000 steps;
    or a run of skips longer than the scale can be halved before it is below 1 (17 from 2^16). The
    calibration at the start is left out: until 200 clean steps, and no more skips than log2 of the
    initial scale and the hysteresis. The count is always divided by 1,000, never by a shorter log.
    One finding an episode.

Why it matters
    Each skip is a step of compute that taught nothing, and 144 in a row take a scale of 2^16 to the
    point where the scaler itself writes NaN into the weights.

Evidence
    Skips per 1,000 steps, and the loss scale, over the episode.

Silent when
    The scaler calibrates, or overflows about once a growth interval. Where no scale is logged,
    single overflows at up to 110 per 1,000 are an info: a short growth interval makes them too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.optimizer_facts import NEVER_STEPPED, STEP_IT, never_stepped
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.scaler_reading import ZERO_LOG2
from forensics.diagnose.scaling import WINDOW, Scaling
from forensics.diagnose.series import merged, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent, power_of_two, span, steps
from forensics.frozen import dataclass
from forensics.runlog.schema import SKIP_OTHER
from forensics.runlog.steps import IntArray

SAWTOOTH_SKIPS = 110
"""Skips per 1,000 steps of a growth interval of 20 with hysteresis 2, the shortest in use."""


@dataclass(frozen=True)
class Thresholds:
    """Factors on what a healthy scaler does; the limits themselves follow from its policy."""

    rate: float = threshold(1.0, "times the healthy limit; 20 simulated seeds stay below 18 of 20")
    octaves: float = threshold(1.0, "times the limit of 10 octaves; 20 simulated seeds reach 9")
    severe: float = threshold(0.05, "share of the last 1,000 steps at which recordings stop")
    quiet: int = threshold(250, "five times the mean gap at 20 skips per 1,000: episodes end there")


@dataclass(frozen=True)
class _Alarm:
    """One episode: its rows, its worst count per 1,000 steps, and its longest run of skips."""

    first: int
    last: int
    skips: int
    peak: int
    limit: float
    run: int
    folded: int


@rule(thresholds=Thresholds, needs=("skipped|scaler_scale|skipped_steps",))
def high_skip_rate(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of too many skips."""
    scaling = signals.scaling
    rows = _alarm_rows(scaling, thresholds)
    for episode in told_episodes(signals.step[rows], WINDOW):
        alarm = _alarm(signals, episode.first, episode.last, episode.folded, thresholds)
        yield Finding(
            rule="high-skip-rate",
            severity=_severity(signals, alarm, thresholds.severe),
            message=_message(signals, alarm),
            first_step=signals.step_at(alarm.first),
            last_step=signals.step_at(alarm.last),
            evidence=(
                signals.evidence(
                    "scaler_scale", signals.scale, [alarm.first - 1, alarm.first, alarm.last]
                ),
                signals.evidence("loss", signals.loss, [alarm.first - 1, alarm.first, alarm.last]),
            ),
            cause=_cause(signals, alarm),
            remedy=_remedy(signals, alarm),
        )


def _alarm_rows(scaling: Scaling, thresholds: Thresholds) -> IntArray:
    """Rows at which one of the three alarms is on, ascending."""
    counted, falls = scaling.counted, scaling.counted_falls
    often = scaling.in_window(counted) > thresholds.rate * scaling.skip_limit(counted)
    steep = scaling.octaves_lost() >= thresholds.octaves * scaling.octave_limit(falls.rows)
    return merged(counted[often], falls.rows[steep], _overlong(scaling))


def _overlong(scaling: Scaling) -> IntArray:
    """Rows at which a run of skips has reached its limit."""
    runs, skips = scaling.runs, scaling.skips
    if len(runs.first) == 0:
        return skips[:0]
    total = np.concatenate(([0], np.cumsum(scaling.lost)))
    run = np.maximum(np.searchsorted(runs.first, skips, side="right") - 1, 0)
    inside = (skips >= runs.first[run]) & (skips <= runs.last[run])
    gone = total[1:] - total[np.searchsorted(skips, runs.first)][run]
    return np.asarray(skips[inside & (gone >= runs.limit[run])], dtype=np.int64)


def _severity(signals: Signals, alarm: _Alarm, severe: float) -> Severity:
    """By the rate; where no scale is logged, single overflows may be a short growth interval's."""
    rows = _skips_in(signals, alarm)
    unknown = signals.scaling.active is None and not signals.loss_bad[rows].any()
    if unknown and not alarm.run and alarm.peak <= SAWTOOTH_SKIPS:
        return Severity.INFO
    return Severity.ERROR if alarm.run or alarm.peak > severe * WINDOW else Severity.WARNING


def _skips_in(signals: Signals, alarm: _Alarm) -> IntArray:
    skips = signals.scaling.skips
    return np.asarray(skips[(skips >= alarm.first) & (skips <= alarm.last)], dtype=np.int64)


def _alarm(
    signals: Signals, first_step: int, last_step: int, folded: int, thresholds: Thresholds
) -> _Alarm:
    """The episode around its alarms: from where its skips began to where they end."""
    scaling, step = signals.scaling, signals.step
    row, end = (int(r) for r in np.searchsorted(step, (first_step, last_step)))
    events = merged(scaling.counted, scaling.counted_falls.rows)
    limit = float(scaling.skip_limit(np.array([row]))[0])
    start = scaling.run_start(row)
    if start == row:
        near = events[(events <= row) & (step[events] > first_step - WINDOW)]
        start = int(near[_onset(step[near], limit / 2 / WINDOW)]) if len(near) else row
    later = events[events >= end]
    gaps = np.flatnonzero(np.diff(step[later]) > thresholds.quiet)
    last = int(later[gaps[0] if len(gaps) else -1]) if len(later) else end
    inside = (scaling.counted >= start) & (scaling.counted <= last)
    counts = scaling.in_window(scaling.counted)[inside]
    runs = scaling.runs
    long = runs.length[(runs.first >= start) & (runs.first <= last) & runs.too_long]
    return _Alarm(
        first=start,
        last=max(last, end),
        skips=int(scaling.lost[(scaling.skips >= start) & (scaling.skips <= last)].sum()),
        peak=int(counts.max(initial=0)),
        limit=limit,
        run=int(long.max(initial=0)),
        folded=folded,
    )


def _onset(at: IntArray, usual: float) -> int:
    """Index of the event from which on they come faster than usual: the peak of a CUSUM.

    Args:
        at: steps of the events up to the alarm, ascending.
        usual: events a step, between the healthy rate and the alarm's.
    """
    excess = np.arange(len(at), 0, -1) - usual * (at[-1] - at)
    return int(np.argmax(excess))


def _message(signals: Signals, alarm: _Alarm) -> str:
    first, last = signals.step_at(alarm.first), signals.step_at(alarm.last)
    again = f"; {alarm.folded:,} episodes of it" if alarm.folded > 1 else ""
    if alarm.run:
        runs, longest = signals.scaling.runs, _longest_run(signals, alarm)
        begins, explained = int(runs.first[longest]), int(runs.limit[longest]) - 1
        log2 = signals.scaling.log2_at(begins)
        scale = "0" if log2 <= ZERO_LOG2 else power_of_two(2.0**log2)
        at = f" from a scale of {scale}" if signals.scaling.active else ""
        also = (
            ""
            if len(_skips_in(signals, alarm)) == alarm.run
            else (f", {steps(len(_skips_in(signals, alarm)))} in all from {first:,} to {last:,}")
        )
        usual = f" ({explained} can be a scaler's work{at})"
        if signals.scaling.active is False:
            usual = ""
        return (
            f"{steps(alarm.run)} in a row were skipped from step {signals.step_at(begins):,} on"
            f"{usual}{also}{again}"
        )
    if alarm.peak > alarm.limit:
        share = percent(alarm.skips / max(last - signals.table.first_of(alarm.first) + 1, 1))
        return (
            f"{steps(alarm.skips)} skipped in {span(first, last)} ({share}): up to {alarm.peak:,} "
            f"per 1,000, where a healthy scaler stays below {number(alarm.limit)}{again}"
        )
    falls = signals.scaling.counted_falls
    inside = (falls.rows >= alarm.first) & (falls.rows <= alarm.last)
    lost = float(falls.octaves[inside].sum())
    return (
        f"the loss scale fell by {number(lost)} octaves in {span(first, last)} "
        f"({steps(alarm.skips)} skipped); a healthy one loses up to 9 in 1,000 steps{again}"
    )


def _longest_run(signals: Signals, alarm: _Alarm) -> int:
    runs = signals.scaling.runs
    inside = (runs.first >= alarm.first) & (runs.first <= alarm.last) & runs.too_long
    return int(np.flatnonzero(inside)[np.argmax(runs.length[inside])])


def _cause(signals: Signals, alarm: _Alarm) -> str:
    rows = _skips_in(signals, alarm)
    if never_stepped(signals):
        return NEVER_STEPPED
    if len(rows) and signals.loss_bad[rows].mean() > 0.5:
        return (
            "The loss itself is non-finite in most of them: halving the scale is in vain, since it "
            "is applied after the loss."
        )
    if len(rows) and signals.reason_starts(SKIP_OTHER)[rows].mean() > 0.5:
        return "A guard of the training loop refused them, not the loss scaler."
    if signals.scaling.active is False:
        return "No loss scaler is at work: a guard refuses steps with non-finite gradients."
    bad_at_one = signals.norm_bad[rows] & (signals.scale[rows] <= 1.0)
    if bad_at_one.any():
        return "Gradients are non-finite even at a scale of 1 or below: no overflow of scaling."
    return (
        "Scaled gradients overflow again and again: they grow, a few samples are far larger than "
        "the rest, or the scale does not follow."
    )


def _remedy(signals: Signals, alarm: _Alarm) -> str:
    if never_stepped(signals):
        return STEP_IT
    first = signals.step_at(alarm.first)
    look = f"Look at what changed at step {first:,}: data, learning rate, a growing layer."
    if signals.precision != "fp16":
        return f"{look} Precision is not the limit here; find what makes the values non-finite."
    return (
        f"{look} If the values are sound and merely large, bf16 (where the device has it) ends it."
    )
