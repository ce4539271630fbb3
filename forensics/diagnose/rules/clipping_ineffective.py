"""The clip does not do what it says.

What it detects
    Norms measured after the clip that are above the threshold: equal to the norm before it (the
    clip does nothing, or comes after the step), between the two (only some parameters are
    clipped), or even above the norm before.

Why it matters
    Whoever relies on a clip takes no other care. Without one, a single spike can throw the
    weights out of their valley.

Evidence
    The norm after the clip at the first steps concerned, against the threshold.

Silent when
    The norms after the clip are derived from its coefficient instead of measured (they repeat its
    promise), they are sqrt(2), sqrt(3) or 2 times what is due to the digit (the optimizer was
    called that often), the threshold is neither stated nor constant, or fewer than 3 steps and 5 %
    of those above the threshold are concerned.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.blocks import mask_where
from forensics.diagnose.clipping import Clip, clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray

MOST_CALLS = 4
"""Calls of an optimizer's step that one step of a log may hold together."""
_EXACT = 1e-4
"""Relative; the clip's epsilon of 1e-6 and rounding come to less."""


@dataclass(frozen=True)
class Thresholds:
    """How far a norm may miss the threshold, and how often."""

    slack: float = threshold(0.02, "relative; norms in bf16 are off by up to 0.8 %")
    least: int = threshold(3, "steps; one or two are rows of a log gone wrong")
    share: float = threshold(0.05, "of the steps above the threshold")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",), parts=("measured_clip",))
def clipping_ineffective(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    clip = clip_of(signals)
    norm, post = signals.norm, signals.post_norm
    usable = mask_where(len(norm), lambda at: _comparable(signals, clip, at))
    above_before = mask_where(
        len(norm),
        lambda at: usable[at] & (post[at] > (1 + thresholds.slack) * norm[at]) & (post[at] > 0),
    )
    above_limit = np.zeros(len(norm), dtype=bool)
    asked = usable
    if clip.constant:
        limit = (1 + thresholds.slack) * clip.threshold
        asked = usable & (norm > limit)
        above_limit = asked & (post > limit)
    wrong = above_limit | above_before
    if np.count_nonzero(wrong) < thresholds.least:
        return
    # Counted as they come: steps that are right later do not take back those that were wrong.
    count, of = np.cumsum(wrong), np.cumsum(asked | wrong)
    if not ((count >= thresholds.least) & (count >= thresholds.share * of)).any():
        return
    yield _finding(signals, clip, wrong, asked, above_before, thresholds.slack)


def _comparable(signals: Signals, clip: Clip, at: slice) -> BoolArray:
    """Which rows of a block have a norm before and one after the same clip, shape (block,)."""
    norm, post = signals.norm[at], signals.post_norm[at]
    unusable = signals.skipped[at] | signals.norm_overflowed[at] | _counted_again(clip, norm, post)
    return np.isfinite(norm) & np.isfinite(post) & ~unusable


def _counted_again(clip: Clip, norm: FloatArray, post: FloatArray) -> BoolArray:
    """Rows whose norm after the clip is that of several equal calls of the optimizer's step.

    Older recordings put the calls of one step together: k of them give sqrt(k) times the norm.
    """
    due = np.minimum(norm, clip.threshold) if clip.constant else norm
    with np.errstate(all="ignore"):
        calls = np.square(post / due)
    whole = np.round(calls)
    return np.asarray(
        (whole >= 2) & (whole <= MOST_CALLS) & (np.abs(calls - whole) < _EXACT * whole), dtype=bool
    )


def _finding(
    signals: Signals,
    clip: Clip,
    wrong: BoolArray,
    asked: BoolArray,
    above_before: BoolArray,
    slack: float,
) -> Finding:
    rows = np.flatnonzero(wrong)
    first, last = int(rows[0]), int(rows[-1])
    norm, post = signals.norm[rows], signals.post_norm[rows]
    nothing = float((np.abs(post - norm) <= slack * norm).mean()) > 0.5
    limit = f"the threshold of {number(clip.threshold)}" if clip.constant else "the norm before it"
    if float(above_before[rows].mean()) > 0.5:
        kind = "above the norm before it"
    else:
        kind = "the norm before it, unchanged" if nothing else f"still above {limit}"
    every = int((asked & ~wrong).sum()) == 0
    example = f"{number(float(post[0]))} after it, {number(float(norm[0]))} before"
    return Finding(
        rule="clipping-ineffective",
        severity=Severity.ERROR if every and clip.stated else Severity.WARNING,
        message=(
            f"in {steps(len(rows))} from {signals.step_at(first):,} on the norm after the clip is "
            f"{kind} ({example}; threshold {number(clip.threshold)})"
        ),
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence(
                "grad_l2_post_clip",
                signals.post_norm,
                spread_out(rows),
                clip.threshold if clip.constant else None,
            ),
            signals.evidence("grad_l2_pre_clip", signals.norm, spread_out(rows)),
        ),
        cause=_cause(nothing, float(above_before[rows].mean()) > 0.5),
        remedy=(
            "Clip between unscale and step, over the parameters the optimizer holds, all in one "
            "call; then compare the norm at optimizer entry with the threshold."
        ),
    )


def _cause(nothing: bool, above: bool) -> str:
    if above:
        return "Gradients are added or scaled after the clip (accumulation, unscale, noise)."
    if nothing:
        return (
            "The clip is called on other tensors than the optimizer steps with (a copy, an "
            "exhausted generator of parameters), or after the step."
        )
    return "Only some of the parameters are clipped, or each group by itself."
