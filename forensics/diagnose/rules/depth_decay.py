"""Signals shrink layer by layer from the first step on: the initialisation is too small.

What it detects
    At the first steps, the gradient on its way back through like layers, or the activation on its
    way forward, falls by a constant factor a layer: 3 decades or more from end to end over at
    least 6 layers, on a straight line in the logarithm.

Why it matters
    The layers far from the loss get next to no gradient and stay as they were initialised. No
    learning rate mends it: one that suits the first layer is far too high for the last.

Evidence
    The statistic of each layer, in the direction in which it travels.

Silent when
    There are fewer than 6 like layers, the scale changes in jumps and not steadily, or the record
    starts after step 100, when training has reshaped the network.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.depth import depth_trends, no_trend
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When a scale is said to fall with depth."""

    decades: float = threshold(3.0, "sound networks at initialisation stay within 2.6")
    layers: int = threshold(6, "fewer points make a line of anything")
    r2: float = threshold(0.8, "a steady factor a layer; odd single layers stay below")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    return "" if any(depth_trends(signals, thresholds.layers)) else no_trend(signals)


@rule(
    thresholds=Thresholds,
    parts=("params.grad_l2|activations.std",),
    too_little=_too_little,
)
def depth_decay(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for the family of layers whose scale falls the most."""
    falling = [
        trend
        for trend in depth_trends(signals, thresholds.layers)
        if trend.decades <= -thresholds.decades and trend.r2 >= thresholds.r2
    ]
    if not falling:
        return
    worst = min(falling, key=lambda trend: trend.decades)
    yield Finding(
        rule="depth-decay",
        severity=Severity.WARNING,
        message=worst.sentence(),
        first_step=worst.first_step,
        last_step=worst.last_step,
        subject=worst.template,
        evidence=(worst.evidence(),),
        cause="Weights initialised too small for this depth, or a saturating activation "
        "(sigmoid, tanh) without normalisation or skip connections.",
        remedy="Initialise for the activation (Kaiming for ReLU, Xavier for tanh), use a "
        "non-saturating activation, or add normalisation or skip connections; then compare the "
        "profile at step 0 again.",
    )
