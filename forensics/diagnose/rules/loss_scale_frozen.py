"""Steps are skipped and the loss scale does not move.

What it detects
    Two skips or more after which the scale stays as it is, in a log in which it never falls; in one
    in which it does fall elsewhere, four of them at one scale. ``update()`` is missing on the path
    that skips. Or the scaler itself said so: the run ended with its exception that ``unscale_()``
    was called twice since the last ``update()``. One finding for the run.

Why it matters
    The scale that overflowed once overflows again in the next step, and no step is taken any more.

Evidence
    The scale at the skipped steps and after them.

Silent when
    No scaler is at work, a guard skipped (``other``), the scale is at its floor, or a hysteresis
    may have forgiven the overflow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.scaler_reading import spared
from forensics.diagnose.series import merged
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import power_of_two, steps, times
from forensics.frozen import dataclass
from forensics.runlog.schema import SKIP_OTHER
from forensics.runlog.steps import BoolArray, IntArray

_COMPLAINT = "since the last update()"
"""In what GradScaler raises when ``unscale_()`` or ``step()`` comes twice without ``update()``."""


@dataclass(frozen=True)
class Thresholds:
    """How many skips without a fall are more than hysteresis."""

    never: int = threshold(2, "hysteresis 2, the most that is common, forgives one overflow")
    elsewhere: int = threshold(4, "no scaler in use forgives more than three overflows in a row")


@rule(thresholds=Thresholds, needs=("skipped", "scaler_scale"))
def loss_scale_frozen(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding where skips leave the scale alone."""
    if not signals.scaling.active:
        return
    if _scaler_complained(signals):
        yield _forgotten(signals)
        return
    stuck = _stuck(signals, thresholds)
    if len(stuck) == 0:
        return
    first, last = int(stuck[0]), int(stuck[-1])
    for_loss = bool(signals.loss_bad[stuck].all())
    scale = power_of_two(float(signals.scale[first]))
    yield Finding(
        rule="loss-scale-frozen",
        severity=Severity.WARNING if for_loss else Severity.ERROR,
        message=f"{steps(len(stuck))} skipped from {signals.step_at(first):,} to "
        f"{signals.step_at(last):,} and the loss scale {_moved(signals, stuck, scale)}",
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence("scaler_scale", signals.scale, np.unique([*stuck[:4], *stuck[-4:]])),
        ),
        cause=_cause(for_loss),
        remedy=_remedy(for_loss),
    )


def _scaler_complained(signals: Signals) -> bool:
    """Did the run end with GradScaler's own exception about a missing ``update()``?"""
    manifest = signals.run.manifest
    ended = manifest.ended if manifest is not None else None
    return ended is not None and ended.how == "exception" and _COMPLAINT in ended.message


def _forgotten(signals: Signals) -> Finding:
    """The finding where the scaler refused to go on; the row before is the last that was logged."""
    row = len(signals) - 1
    what = "skipped" if signals.skipped[row] else "taken"
    return Finding(
        rule="loss-scale-frozen",
        severity=Severity.ERROR,
        message=f"scaler.update() was not called after step {signals.step_at(row):,}, which was "
        f"{what}: the next step raised",
        first_step=signals.step_at(row),
        last_step=signals.step_at(row),
        evidence=(
            signals.evidence("scaler_scale", signals.scale, [row - 1, row]),
            signals.evidence("grad_l2_pre_clip", signals.norm, [row - 1, row]),
        ),
        cause="The loop returns early on a bad step, after unscale_() and before update().",
        remedy="Call scaler.update() on that path too: GradScaler skips such a step by itself.",
    )


def _moved(signals: Signals, stuck: IntArray, scale: str) -> str:
    inside = signals.scaling.growths.rows
    grown = int(((inside >= stuck[0]) & (inside <= stuck[-1])).sum())
    if grown:
        return f"did not fall once (it grew {times(grown)} from {scale})"
    return f"stayed at {scale}"


def _stuck(signals: Signals, thresholds: Thresholds) -> IntArray:
    """Rows of the skips that left the scale alone, where they are enough to be a fault."""
    scaling = signals.scaling
    skips = np.flatnonzero(signals.skipped & ~signals.reason_starts(SKIP_OTHER))
    fell = _fell_around(signals, skips)
    floor = np.log2(scaling.floor) if scaling.floor > 0 else 0.0
    above = signals.scale_log2(skips) > floor
    stuck = skips[above & ~fell]
    if len(stuck) == 0:
        return stuck
    if not fell.any() and len(scaling.falls) == 0:
        most = len(stuck) if scaling.hysteresis == 1 else int(_at_one_scale(signals, stuck).max())
        return stuck if most >= max(thresholds.never, scaling.patience) else stuck[:0]
    stuck = stuck[~spared(signals)[stuck]]
    if len(stuck) == 0:
        return stuck
    enough = _at_one_scale(signals, stuck) >= max(thresholds.elsewhere, scaling.patience + 2)
    return stuck[enough]


def _fell_around(signals: Signals, skips: IntArray) -> BoolArray:
    """Skips around which the scale fell, or after which no scale is logged; shape of ``skips``.

    From the row before to the row after, so that it holds whether the scale is logged before or
    after ``update()`` and for logs that leave steps out.
    """
    scales = signals.scaling.scales
    if len(scales) == 0:
        return np.ones(len(skips), dtype=bool)
    unseen = skips >= scales.last[-1]
    fell = scales.since(skips + 1) < scales.at(skips - 1)
    return np.asarray(fell | unseen, dtype=bool)


def _at_one_scale(signals: Signals, stuck: IntArray) -> IntArray:
    """How many of the skips lie between the same two moves of the scale; shape of ``stuck``."""
    scaling = signals.scaling
    place = np.searchsorted(merged(scaling.falls.rows, scaling.growths.rows), stuck)
    alike = np.searchsorted(place, place, side="right") - np.searchsorted(place, place)
    return np.asarray(alike, dtype=np.int64)


def _cause(for_loss: bool) -> str:
    if for_loss:
        return (
            "The loop skips a non-finite loss before backward and leaves the scaler as it is. What "
            "makes the loss non-finite lies before the scale."
        )
    return "scaler.update() is not reached on the path that skips, or the loss scale is static."


def _remedy(for_loss: bool) -> str:
    if for_loss:
        return (
            "Mend the loss first: no scale reaches it. Then let that path lower the scale as the "
            "other one does, with scaler.update(scale × backoff) (a plain update() raises where "
            "nothing was unscaled): else a scale too large for backward stays."
        )
    return "Call scaler.update() after every step, skipped or not."
