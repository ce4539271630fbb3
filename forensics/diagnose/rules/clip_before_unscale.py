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
    are too noisy to tell, and the threshold is not known. Rows that say so themselves are an info
    where nothing clips, as far as run.json and the norms show: only the norms come too early.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.blocks import blocks, mask_where
from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.finite import KeptRows
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import MAD_TO_SIGMA, median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

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
        if _nothing_clips(signals):
            yield _measured_too_early(signals, said)
        else:
            yield _finding(signals, said, "the log says itself that the clip saw scaled gradients")
        return
    if not signals.scaler_active:
        return
    usable = mask_where(
        len(signals), lambda at: _usable(signals.norm[at]) & _usable(signals.scale[at])
    )
    rows = KeptRows.of(usable)
    if len(rows) < 2 * thresholds.side:
        return
    usable[: thresholds.settling] = False
    follows = _follows(signals, usable, thresholds)
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


def _usable(values: FloatArray) -> BoolArray:
    return np.asarray(np.isfinite(values) & (values > 0), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Follows:
    """Rows after the changes of the scale, and how far the norm moves with it."""

    rows: IntArray
    ratio: float


def _follows(signals: Signals, usable: BoolArray, limits: Thresholds) -> _Follows | None:
    """Does the norm move with the scale, surely and in both directions?

    A burst of large gradients moves both down together, but not up.
    """
    rows = KeptRows.of(usable)
    if len(rows) < 2 * limits.side:
        return None
    changed, step, ratio, variance = _changes(signals, usable, rows, limits.side)
    if len(changed) < limits.changes:
        return None
    near, _ = _weighted(ratio, variance)
    if not limits.low - 0.01 <= near <= limits.high + 0.01:
        return None  # the noise, a median of all rows, weighs all changes alike: it saves nothing
    variance *= _noise(signals, rows) ** 2
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


def _edges(scale: FloatArray, usable: BoolArray) -> IntArray:
    """Which usable rows, counted from 0, have another scale than the usable row before."""
    found, count, before = [], 0, np.empty(0)
    for at in blocks(len(scale)):
        kept = np.concatenate((before, scale[at][usable[at]]))
        found.append(count + 1 - len(before) + np.flatnonzero(kept[1:] != kept[:-1]))
        count, before = count + len(kept) - len(before), kept[-1:]
    return np.concatenate(found)


def _changes(
    signals: Signals, usable: BoolArray, rows: KeptRows, side: int
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Each change of the scale: row after it, octaves, Δlog2 norm ÷ octaves, variance of that.

    From the medians of up to ``side`` norms on each side, within the stretches of one scale. The
    variance is that of norms whose noise is 1 octave.
    """
    edges = _edges(signals.scale, usable)
    octaves = np.log2(signals.scale[rows[edges]]) - np.log2(signals.scale[rows[edges - 1]])
    moves = np.abs(octaves) > 1e-3
    cuts, step = edges[moves][:_MOST], octaves[moves][:_MOST]
    bounds = np.concatenate(([0], cuts, [len(rows)]))
    start, middle, end = bounds[:-2], bounds[1:-1], bounds[2:]
    before = np.minimum(middle - start, side)
    after = np.minimum(end - middle, side)

    def level(first: int, end: int) -> float:
        return median(np.log(signals.norm[rows[first:end]]) / np.log(2))

    low = np.array([level(m - n, m) for m, n in zip(middle, before, strict=True)])
    high = np.array([level(m, m + n) for m, n in zip(middle, after, strict=True)])
    variance = (1.25 / step) ** 2 * (1 / before + 1 / after)
    return rows[middle], step, (high - low) / step if len(step) else step, variance


def _noise(signals: Signals, rows: KeptRows) -> float:
    """Standard deviation of the norms from row to row, robust, in octaves; at least 0.001."""
    norm = np.log(rows.of_column(signals.norm)) / np.log(2)
    return max(MAD_TO_SIGMA * median(np.abs(np.diff(norm))) / float(np.sqrt(2)), 1e-3)


def _threshold_rows(signals: Signals, rows: KeptRows) -> IntArray:
    """Rows whose norm after the clip is the stated threshold ÷ scale, if most of them are."""
    clip = clip_of(signals)
    if not clip.stated:
        return rows[:0]
    scale, post = rows.of_column(signals.scale), rows.of_column(signals.post_norm)
    known = np.isfinite(post) & (scale > 2)
    hit = known & (np.abs(post * scale - clip.threshold) <= 0.01 * clip.threshold)
    return rows[np.flatnonzero(hit)] if hit.sum() >= 0.5 * max(int(known.sum()), 1) else rows[:0]


def _nothing_clips(signals: Signals) -> bool:
    """Does run.json know of no clip, and do the norms show none?"""
    return signals.run.manifest is not None and not clip_of(signals).known


def _measured_too_early(signals: Signals, rows: IntArray) -> Finding:
    return Finding(
        rule="clip-before-unscale",
        severity=Severity.INFO,
        message="the logged gradient norms are of gradients still multiplied by the loss scale",
        first_step=signals.step_at(int(rows[0])),
        last_step=signals.last_step,
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, rows[:6]),
            signals.evidence("scaler_scale", signals.scale, rows[:6]),
        ),
        cause="The norms are taken before unscale_; as nothing clips, the steps are not touched.",
        remedy="Call scaler.unscale_(optimizer) before the norms are taken, and before any clip.",
    )


def _finding(
    signals: Signals, rows: IntArray | KeptRows, told: str, around: IntArray | None = None
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
