"""Overflows that are no fault: a loss scale that is too high, found out and lowered."""

from __future__ import annotations

import math

from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.explanation import is_overflow
from forensics.replay.tracing.step_facts import StepFacts

_LEAST_SCALE = 1.0
"""At or below this scale an overflow is none of the scaler's making."""


def absorbed(facts: StepFacts) -> str:
    """Why the damage of a step is no fault; empty where it is one.

    A loss scale that is too high makes half-precision gradients overflow in backward. The scaler
    sees it, skips the step and lowers the scale: that is how it finds its place. It is a fault
    where the loss is bad as well, where anything but gradients was damaged, where the scale is
    already 1, or where an operator divided by 0 rather than overflowed.
    """
    trace, scale = facts.trace, facts.scale
    if not scale > _LEAST_SCALE or not (trace.raised or math.isfinite(trace.loss)):
        return ""
    if not trace.damages or any(d.place != "gradient" for d in trace.damages):
        return ""
    for index in {d.birth for d in trace.damages}:
        if index is None:
            return ""
        birth = trace.births[index]
        half = birth.output is not None and birth.output.dtype in ("float16", "bfloat16")
        if birth.phase is not Phase.BACKWARD or not half or not is_overflow(birth):
            return ""
    return (
        f"gradients overflowed under the loss scale of {scale:,.6g}; the scaler skips the step "
        "and lowers the scale"
    )
