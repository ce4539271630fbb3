"""Gradients were divided by the loss scale twice.

What it detects
    Norms at the optimizer's entry, measured, that are those before the clip divided by the loss
    scale once more, step after step.

Why it matters
    The updates of SGD are too small by the loss scale, 65,536 times as a rule, and the run learns
    next to nothing. Adam hides it until the gradients fall below its eps.

Evidence
    The norm before the clip, the norm at the optimizer's entry and the loss scale.

Silent when
    The scale is below 16, the norms after the clip are derived instead of measured, the norm before
    the clip is that of gradients that were still scaled (``grads_scaled``), or fewer than 3 steps
    or half of the steps are like this.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.blocks import mask_where, rows_where
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How closely the norms must repeat the scale, and how often."""

    slack: float = threshold(0.02, "relative; norms in bf16 are off by up to 0.8 %")
    scale: float = threshold(16.0, "smaller factors a loop may divide by for another reason")
    least: int = threshold(3, "steps; one or two are rows of a log gone wrong")
    share: float = threshold(0.5, "of the steps that can tell; chance never repeats itself so")


@rule(
    thresholds=Thresholds,
    needs=("grad_l2_pre_clip", "scaler_scale"),
    parts=("measured_clip",),
)
def double_unscale(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    telling = _telling(signals, thresholds.scale)
    norm, post, scale = signals.norm, signals.post_norm, signals.scale

    def again(at: slice) -> BoolArray:
        with np.errstate(all="ignore"):
            apart = np.abs(post[at] * scale[at] / norm[at] - 1)
        return np.asarray(telling[at] & (apart <= thresholds.slack), dtype=bool)

    rows = rows_where(len(norm), again)
    if len(rows) < max(thresholds.least, thresholds.share * np.count_nonzero(telling)):
        return
    first, last = int(rows[0]), int(rows[-1])
    yield Finding(
        rule="double-unscale",
        severity=Severity.ERROR,
        message=(
            f"in {steps(len(rows))} from {signals.step_at(first):,} on the optimizer got gradients "
            f"of norm {number(float(post[first]))} where {number(float(norm[first]))} had been "
            f"measured: once more divided by the loss scale of {power_of_two(float(scale[first]))}"
        ),
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence("grad_l2_pre_clip", norm, spread_out(rows)),
            signals.evidence("grad_l2_post_clip", post, spread_out(rows)),
            signals.evidence("scaler_scale", scale, spread_out(rows)),
        ),
        cause="The gradients are unscaled by scaler.unscale_() and by hand, too.",
        remedy="Divide by the loss scale once: scaler.unscale_(optimizer) does it, and "
        "scaler.step(optimizer) where unscale_ was not called.",
    )


def _telling(signals: Signals, least: float) -> BoolArray:
    """Rows that can tell: both norms finite and above 0, a scale at work, the step taken."""
    norm, post, scale = signals.norm, signals.post_norm, signals.scale
    silent = signals.skipped | signals.norm_overflowed | signals.flag("grads_scaled")

    def tells(at: slice) -> BoolArray:
        sound = np.isfinite(norm[at]) & np.isfinite(post[at]) & (norm[at] > 0) & (post[at] > 0)
        return np.asarray(sound & (scale[at] >= least) & ~silent[at], dtype=bool)

    return mask_where(len(norm), tells)
