"""The clip saw gradients that were still multiplied by the loss scale.

What it detects
    Rows that say so themselves (``grads_scaled``); else norms before the clip that follow the
    loss scale: the mean of Δlog2 norm ÷ Δlog2 scale over at least 2 changes of the scale is
    within 0.75 to 1.25, at least 4 standard errors from 0, and alike where the scale rises and
    where it falls; else norms after the clip that are the threshold divided by the scale.

Why it matters
    The threshold then acts on gradients that are 65,536 times too large: in effect everything is
    clipped to almost nothing. Adam hides it by its normalisation, SGD barely moves.

Evidence
    The norm and the loss scale around the changes of the scale.

Silent when
    No loss scale is at work; or it changes fewer than twice after the first 100 steps, or the norms
    are too noisy to tell, and the threshold is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import MAD_TO_SIGMA
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two
from forensics.runlog.steps import FloatArray, IntArray

_MOST = 500


@dataclass(frozen=True)
class Thresholds:
    """When a norm follows the scale."""

    low: float = threshold(0.75, "ratio of changes: 0 of 180 healthy runs, power 90 to 100 %")
    high: float = threshold(1.25, "ratio of changes")
    changes: int = threshold(2, "changes of the scale; one alone agrees by chance in 1 of 10")
    side: int = threshold(20, "norms on each side of a change")
    errors: float = threshold(4.0, "standard errors from 0: noisy norms agree by chance")
    settling: int = threshold(100, "first rows, where norms and a calibrating scale both fall")
    rows: int = threshold(20, "norms after the clip that equal the threshold ÷ scale")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip", "scaler_scale|grads_scaled"))
def clip_before_unscale(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    said = np.flatnonzero(signals.flag("grads_scaled"))
    if len(said):
        yield _finding(signals, said, "the log says itself that the clip saw scaled gradients")
        return
    if not signals.scaler_active:
        return
    rows = np.flatnonzero(np.isfinite(signals.log_norm) & np.isfinite(signals.scale_log2))
    if len(rows) < 2 * thresholds.side:
        return
    settled = rows[rows >= thresholds.settling]
    follows = _follows(signals, settled, thresholds)
    if follows is not None:
        told = (
            f"the gradient norm follows the loss scale over {len(follows.rows)} of its changes "
            f"({number(follows.ratio)} octaves an octave; unscaled norms do not move with it)"
        )
        yield _finding(signals, rows, told, follows.rows)
        return
    scaled = _threshold_rows(signals, rows)
    if len(scaled) >= thresholds.rows:
        limit, scale = clip_of(signals).threshold, float(signals.scale[scaled[0]])
        told = (
            f"norms after the clip are the threshold {number(limit)} divided by the loss scale "
            f"{power_of_two(scale)} in {len(scaled):,} steps"
        )
        yield _finding(signals, scaled, told)


@dataclass(frozen=True, eq=False)
class _Follows:
    """Rows after the changes of the scale, and how far the norm moves with it."""

    rows: IntArray
    ratio: float


def _follows(signals: Signals, rows: IntArray, limits: Thresholds) -> _Follows | None:
    """Does the norm move with the scale, surely and in both directions?

    A burst of large gradients moves both down together, but not up.
    """
    if len(rows) < 2 * limits.side:
        return None
    changed, step, ratio, variance = _changes(signals, rows, limits.side)
    if len(changed) < limits.changes:
        return None
    middle, error = _weighted(ratio, variance)
    either = [_weighted(ratio[d], variance[d])[0] for d in (step > 0, step < 0) if d.any()]
    low, high = 0.8 * limits.low, 1.25 * limits.high
    both = all(low <= one <= high for one in either)
    sure = middle > limits.errors * error and limits.low <= middle <= limits.high
    return _Follows(changed, middle) if both and sure else None


def _weighted(ratio: FloatArray, variance: FloatArray) -> tuple[float, float]:
    """Mean of the ratios by their precision, and its standard error."""
    weight = 1 / variance
    total = float(weight.sum())
    return float((np.clip(ratio, -3, 5) * weight).sum()) / total, float(1 / np.sqrt(total))


def _changes(
    signals: Signals, rows: IntArray, side: int
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Each change of the scale: row after it, octaves, Δlog2 norm ÷ octaves, variance of that.

    From the medians of up to ``side`` norms on each side, within the stretches of one scale.
    """
    scale = signals.scale_log2[rows]
    norm = signals.log_norm[rows] / np.log(2)
    cuts = np.flatnonzero(np.abs(np.diff(scale)) > 1e-3)[:_MOST] + 1
    bounds = np.concatenate(([0], cuts, [len(rows)]))
    start, middle, end = bounds[:-2], bounds[1:-1], bounds[2:]
    before = np.minimum(middle - start, side)
    after = np.minimum(end - middle, side)
    low = np.array([np.median(norm[m - n : m]) for m, n in zip(middle, before, strict=True)])
    high = np.array([np.median(norm[m : m + n]) for m, n in zip(middle, after, strict=True)])
    step = scale[middle] - scale[middle - 1] if len(middle) else np.empty(0)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(norm)))) / np.sqrt(2)
    variance = (1.25 * max(noise, 1e-3) / step) ** 2 * (1 / before + 1 / after)
    return rows[middle], step, (high - low) / step if len(step) else step, variance


def _threshold_rows(signals: Signals, rows: IntArray) -> IntArray:
    """Rows whose norm after the clip is the stated threshold ÷ scale, if most of them are."""
    clip = clip_of(signals)
    if not clip.stated:
        return rows[:0]
    scale, post = signals.scale[rows], signals.post_norm[rows]
    known = np.isfinite(post) & (scale > 2)
    hit = known & (np.abs(post * scale - clip.threshold) <= 0.01 * clip.threshold)
    return rows[hit] if hit.sum() >= 0.5 * max(int(known.sum()), 1) else rows[:0]


def _finding(
    signals: Signals, rows: IntArray, told: str, around: IntArray | None = None
) -> Finding:
    first = int(rows[0])
    shown = rows[:6] if around is None else np.unique(np.concatenate((around[:5] - 1, around[:5])))
    manifest = signals.run.manifest
    optimizer = "" if manifest is None else str(manifest.optimizer.get("name", "")).lower()
    sgd = optimizer.startswith("sgd")
    clip = clip_of(signals)
    scale = float(signals.scale[first])
    known = clip.constant and np.isfinite(scale) and scale > 0 and not clip.stated
    effect = f" to a norm of {number(clip.threshold / scale)}" if known else ""
    hidden = "Adam hides it: it divides by their size." if "adam" in optimizer else ""
    return Finding(
        rule="clip-before-unscale",
        severity=Severity.ERROR if sgd else Severity.WARNING,
        message=f"the clip comes before unscale: {told}",
        first_step=signals.step_at(first),
        last_step=signals.last_step,
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, shown),
            signals.evidence("scaler_scale", signals.scale, shown),
        ),
        cause=(
            f"scaler.unscale_(optimizer) is missing before clip_grad_norm_, so the gradients are "
            f"clipped{effect} while multiplied by the scale. {hidden}"
        ).rstrip(),
        remedy=(
            "Keep this order: backward of the scaled loss, unscale_, clip, scaler.step, "
            "scaler.update. Norms logged so far are the scale times the true ones."
        ),
    )
