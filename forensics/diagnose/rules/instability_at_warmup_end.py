"""Trouble that begins where the learning rate reaches its peak: an annotation, never a root.

What it detects
    The first trouble from which the run does not recover (a spike that stays, exponential growth,
    a rise for good, nothing finite any more), when it begins between half and twice the warm-up.

Why it matters
    The peak is where a learning rate that is too high shows first. It says nothing alone: as a
    rule of its own it would fire on half of all healthy runs.

Evidence
    The learning rate at the end of the warm-up and at the trouble.

Silent when
    There is no warm-up, no such trouble, or the trouble begins earlier or later; the run becomes
    non-finite while its gradient norm is as it was (below 5 times its median).
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.loss_rise import RISE, find_rise
from forensics.diagnose.norm_growth import GROWTH, find_growth, is_harmful
from forensics.diagnose.onset import onset
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.series import last_true
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import (
    LOSS_SPIKE,
    NORM_SPIKE,
    SHIFT,
    level_shifts,
    loss_spikes,
    norm_spikes,
)
from forensics.diagnose.wording import number
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """How near the end of the warm-up is."""

    early: float = threshold(0.5, "of the warm-up: the rate is high enough to harm from there on")
    late: float = threshold(2.0, "of the warm-up: a rate that was borne as long is not too high")


@rule(thresholds=Thresholds, needs=("lr",))
def instability_at_warmup_end(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one annotation."""
    warm = warmup_rows(signals)
    troubles = _troubles(signals)
    if warm < 2 or warm >= len(signals) or not troubles:
        return
    row, what = min(troubles)
    if not thresholds.early * warm <= row <= thresholds.late * warm:
        return
    end, at = signals.step_at(warm), signals.step_at(row)
    rate = float(signals.lr[warm])
    yield Finding(
        rule="instability-at-warmup-end",
        severity=Severity.INFO,
        message=(
            f"{what} at step {at:,}, near the end of the warm-up at step {end:,}, where the "
            f"learning rate reaches {number(rate)}"
        ),
        first_step=at,
        last_step=signals.last_step,
        evidence=(signals.evidence("lr", signals.lr, sorted({0, warm // 2, warm, row})),),
        cause="The peak of the learning rate may be more than these weights bear.",
        remedy="Halve the peak, or lengthen the warm-up, if nothing else explains the trouble.",
    )


def _troubles(signals: Signals) -> list[tuple[int, str]]:
    """First row and kind of each trouble that lasts."""
    found = []
    rise = signals.derived(find_rise, *RISE)
    if rise is not None and not rise.falling:
        found.append((rise.first, "the loss rises for good"))
    found += [
        (growth.first, "the gradient norm starts to grow exponentially")
        for growth in signals.derived(find_growth, *GROWTH)
        if not growth.returned and is_harmful(signals, growth)
    ]
    losses, norms = (
        signals.derived(loss_spikes, *LOSS_SPIKE),
        signals.derived(norm_spikes, *NORM_SPIKE),
    )
    lasting = losses.stays & ~level_shifts(signals, losses, *SHIFT)
    for spikes, stays, name in ((losses, lasting, "loss"), (norms, norms.stays, "gradient norm")):
        first = spikes.rows[spikes.first[stays]]
        if len(first):
            found.append((int(first[0]), f"the {name} jumps and does not come back"))
    bad = signals.loss_bad | signals.norm_bad
    start = 1 + last_true(~bad & (signals.present("loss") | signals.present("grad_l2_pre_clip")))
    # A rate that is too high shows in the norm first: a NaN out of a calm run is another's work (a
    # bad sample, an operation at the end of its domain), wherever the warm-up happens to end.
    if bad[start:].sum() > 1 and not onset(signals, start).calm:
        found.append((start, "loss or gradient becomes non-finite for good"))
    return found
