"""The loss scale moves in a way that its policy does not allow.

What it detects
    On stretches with every step logged: a scale that fell without a skip; an overflow that was
    skipped without the fall it calls for; growth before the growth interval was over; a jump (the
    scaler started anew, as after a resume without its state). One finding an episode.

Why it matters
    Something other than the scaler sets the scale, or a part of the loop bypasses it: a lost state
    costs a second calibration, a missing update() overflows again and again.

Evidence
    The loss scale around the first such move.

Silent when
    Steps are missing in between; a skip was for a non-finite loss or by a guard; the scale is at
    its floor; a hysteresis may have forgiven the overflow (where run.json does not state the policy
    only four skips in a row without a fall count); it is the first growth after a start; or the
    scale never falls at all (loss-scale-frozen tells that).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.scaler_reading import ZERO_LOG2, growth_distances, spared
from forensics.diagnose.scaling import POISON_LOG2, WRITTEN, Moves, Scaling
from forensics.diagnose.series import merged, runs_of, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import power_of_two, times
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """How sure the policy must be."""

    gap: int = threshold(1000, "steps; the window of the skip rate")
    in_a_row: int = threshold(4, "no scaler in use forgives more than three overflows in a row")
    confirmed: int = threshold(3, "equal distances from event to growth that make an interval")
    early: float = threshold(0.9, "of the growth interval; a count may be off by a row at a seam")


@dataclass(frozen=True)
class _Kind:
    """One way to break the policy: where, from which scale to which, how it reads, what to do."""

    rows: IntArray
    before: FloatArray
    after: FloatArray
    what: str
    cause: str
    remedy: str


@rule(thresholds=Thresholds, needs=("scaler_scale",))
def loss_scale_policy_broken(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of moves that the policy forbids."""
    scaling = signals.scaling
    if not scaling.active or not (len(scaling.falls) or len(scaling.growths)):
        return  # a scale that never moved keeps to any policy
    kinds = _kinds(signals, thresholds)
    rows = merged(*(kind.rows for kind in kinds))
    for episode in told_episodes(signals.step[rows], thresholds.gap):
        first, last = (int(r) for r in np.searchsorted(signals.step, (episode.first, episode.last)))
        shown = [k for k in kinds if ((k.rows >= first) & (k.rows <= last)).any()]
        lead = min(shown, key=lambda kind: int(kind.rows[kind.rows >= first][0]))
        told = [_told(signals, kind, first, last) for kind in (lead, *shown) if kind is not lead]
        yield Finding(
            rule="loss-scale-policy-broken",
            severity=Severity.WARNING,
            message="; ".join((_told(signals, lead, first, last), *told)),
            first_step=episode.first,
            last_step=episode.last,
            evidence=(
                signals.evidence("scaler_scale", signals.scale, list(range(first - 2, first + 4))),
            ),
            cause=lead.cause,
            remedy=lead.remedy,
        )


def _told(signals: Signals, kind: _Kind, first: int, last: int) -> str:
    inside = np.flatnonzero((kind.rows >= first) & (kind.rows <= last))
    at = int(inside[0])
    text = kind.what.format(
        before=_scale(float(kind.before[at])),
        after=_scale(float(kind.after[at])),
        step=f"{signals.step_at(int(kind.rows[at])):,}",
    )
    return text if len(inside) == 1 else f"{text} ({times(len(inside))} like this)"


def _scale(log2: float) -> str:
    return "0" if log2 <= ZERO_LOG2 else power_of_two(2.0**log2)


def _kinds(signals: Signals, thresholds: Thresholds) -> tuple[_Kind, ...]:
    scaling = signals.scaling
    stays = _skipped_without_fall(signals, thresholds)
    level = np.log2(signals.scale[stays])
    return (
        *(
            _kind(
                moves,
                direction,
                "loss scale jumped from {before} to {after} at step {step}",
                "The scaler started anew: a resume that does not restore its state, or a scale "
                "set by hand.",
                "Save and load scaler.state_dict() with the checkpoint, and look for what else "
                "writes the scale: update(new_scale), load_state_dict.",
            )
            for moves, direction in ((_jumps_up(signals), 1), (_jumps_down(scaling), -1))
        ),
        _kind(
            _fell_without_skip(signals),
            -1,
            "loss scale fell from {before} to {after} at step {step} though no step was skipped",
            "Something other than an overflow lowers the scale, or the log misses skips.",
            "Let scaler.update() alone set the scale, and log skips from what it found.",
        ),
        _Kind(
            stays,
            level,
            level,
            "step {step} was skipped at a scale of {before} and the scale did not fall",
            "scaler.update() is not reached on one of the paths that skip.",
            "Call scaler.update() after every step, skipped or not.",
        ),
        _kind(
            _grew_early(signals, thresholds),
            1,
            "loss scale grew from {before} to {after} at step {step}, before its interval of "
            f"{scaling.interval or 0:,} steps was over",
            "update() is called more than once a step, or another policy took over.",
            "Call scaler.update() once an optimizer step, not once a micro-batch.",
        ),
    )


def _kind(moves: Moves, direction: int, what: str, cause: str, remedy: str) -> _Kind:
    before = moves.to_log2 - direction * moves.octaves
    return _Kind(moves.rows, before, moves.to_log2, what, cause, remedy)


def _jumps_up(signals: Signals) -> Moves:
    """Moves upwards in one step that are more than a growth."""
    policy = signals.policy
    factor = policy.growth_factor if policy is not None and policy.enabled else 2.0
    growths = signals.scaling.growths
    return growths.where(growths.adjacent & (growths.octaves > 1.5 * np.log2(max(factor, 2.0))))


def _jumps_down(scaling: Scaling) -> Moves:
    """Moves far down in one step: where nothing overflowed, or to the scale of the log's start.

    One to a scale at which nothing works any more is loss-scale-collapse's to tell, one at the
    seam of a resume is resume-seam's.
    """
    falls = scaling.falls
    start = scaling.scales.log2[0] if len(scaling.scales) else np.nan
    seam = np.isin(falls.into, scaling.starts)
    anew = falls.adjacent & (falls.octaves > WRITTEN) & (falls.to_log2 == start)
    set_lower = scaling.written & ~seam & (falls.to_log2 > POISON_LOG2)
    return falls.where(anew | set_lower)


def _fell_without_skip(signals: Signals) -> Moves:
    """Falls by one step without a skip, once the log has shown that skips go with falls."""
    falls = signals.scaling.falls
    said = signals.present("skipped")[falls.rows]
    skipped = signals.skipped[falls.rows] & said
    overflow = signals.norm_bad[falls.rows] | signals.loss_bad[falls.rows]
    known = np.cumsum(skipped) > 0
    # A resume changes the scale between two steps of which neither overflowed.
    seam = np.isin(falls.into, signals.scaling.starts)
    far = falls.octaves > WRITTEN
    return falls.where(falls.adjacent & said & ~skipped & ~overflow & known & ~seam & ~far)


def _skipped_without_fall(signals: Signals, thresholds: Thresholds) -> IntArray:
    """Rows of overflows that left the scale alone though the policy lets it fall."""
    scaling = signals.scaling
    falls = scaling.falls.rows
    if not signals.skipped[falls].any():
        return falls[:0]
    floor = np.log2(scaling.floor) if scaling.floor > 0 else 0.0
    skips = np.flatnonzero(signals.skipped & ~spared(signals))
    skips = skips[signals.scale_log2(skips) > floor]
    skips = skips[_has_neighbour(signals, skips)]
    stays = skips[~np.isin(skips, falls)]
    if scaling.hysteresis is None:
        mask = np.zeros(len(signals), dtype=bool)
        mask[stays] = True
        first, last = runs_of(mask)
        return first[last - first + 1 >= thresholds.in_a_row]
    since = np.searchsorted(np.sort(np.concatenate((scaling.growths.rows, scaling.starts))), skips)
    begins = np.searchsorted(since, since)
    ordinal = np.arange(len(skips)) - begins + 1
    broken = skips[~np.isin(skips, falls) & (ordinal >= scaling.hysteresis)]
    return np.asarray(broken, dtype=np.int64)


def _has_neighbour(signals: Signals, rows: IntArray) -> np.ndarray:
    """Is the scale before and after ``update()`` of these steps logged?"""
    other = np.where(rows >= signals.scaling.lag_from, rows - 1, rows + 1)
    inside = (other >= 0) & (other < len(signals))
    at = np.clip(other, 0, max(len(signals) - 1, 0))
    next_step = np.abs(signals.step[at] - signals.step[rows]) == 1
    seam = np.isin(np.maximum(rows, other), signals.scaling.starts)
    return np.asarray(inside & next_step & np.isfinite(signals.scale[at]) & ~seam, dtype=bool)


def _grew_early(signals: Signals, thresholds: Thresholds) -> Moves:
    """Growths that came before the interval was over since the last fall or growth."""
    scaling = signals.scaling
    growths = scaling.growths
    if scaling.interval is None:
        return growths.where(np.zeros(len(growths), dtype=bool))
    distances, rows = growth_distances(signals, scaling.falls, growths, scaling.starts)
    stated = signals.policy is not None and signals.policy.enabled
    sure = stated | (np.cumsum(distances == scaling.interval) >= thresholds.confirmed)
    # Guards and losses may or may not restart the count: only what surely does is held against it.
    last = merged(scaling.falls.rows, growths.rows)
    since = rows - last[np.maximum(np.searchsorted(last, rows) - 1, 0)]
    early = (since < thresholds.early * scaling.interval) & (rows > scaling.interval_row)
    found = rows[early & sure & (np.searchsorted(last, rows) > 0)]
    jumps = np.isin(growths.rows, _jumps_up(signals).rows)
    return growths.where(np.isin(growths.rows, found) & ~jumps)
