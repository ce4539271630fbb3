"""Signals grow layer by layer from the first step on: the initialisation is too large.

What it detects
    At the first steps, the gradient on its way back through like layers, or the activation on its
    way forward, grows by a constant factor a layer: 3 decades or more from end to end over at
    least 6 layers, on a straight line in the logarithm.

Why it matters
    The largest layer sets the global norm, so the clip starves all others, and in fp16 a few more
    doublings reach the end of the format.

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
    """When a scale is said to grow with depth."""

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
def depth_growth(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for the family of layers whose scale grows the most."""
    growing = [
        trend
        for trend in depth_trends(signals, thresholds.layers)
        if trend.decades >= thresholds.decades and trend.r2 >= thresholds.r2
    ]
    if not growing:
        return
    worst = max(growing, key=lambda trend: trend.decades)
    yield Finding(
        rule="depth-growth",
        severity=Severity.WARNING,
        message=worst.sentence(),
        first_step=worst.first_step,
        last_step=worst.last_step,
        subject=worst.template,
        evidence=(worst.evidence(),),
        cause="Weights initialised too large for this depth, or residual branches added without "
        "scaling or normalisation.",
        remedy="Initialise for the activation and the fan-in, scale residual branches by "
        "1/sqrt(2 × layers), or normalise; then compare the profile at step 0 again.",
    )
