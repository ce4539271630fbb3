"""What a step applied, against what it should have: faults with nothing non-finite in them.

Each check is a precise predicate on one traced step and returns the origin, or None. What a sound
loop does is no fault: a skip while the loss scale finds its place, a gradient that is None, a clip
that does not engage, a rate of 0 in the first step of a warm-up, a frozen parameter.
"""

from __future__ import annotations

from collections.abc import Callable

from forensics.diagnose.bisection_result import Origin
from forensics.replay.applied.averages import wrong_shares
from forensics.replay.applied.coverage import (
    climbs,
    left_out,
    schedule_by_micro_batch,
    stepped_twice,
)
from forensics.replay.applied.scaling import (
    clip_after_step,
    clip_of_scaled_gradients,
    divided_again,
    hidden_skip,
    scale_reset,
    shared_scaler,
    step_past_the_scaler,
    updated_too_often,
)
from forensics.replay.applied.updates import (
    gradients_kept,
    negative_rate,
    rounded_away,
    schedule_reset,
    scheduler_ahead,
    scheduler_twice,
    state_lost,
    underflowed,
)
from forensics.replay.tracing.step_facts import StepFacts

Check = Callable[[StepFacts], Origin | None]

CHECKS: tuple[Check, ...] = (
    state_lost,
    schedule_reset,
    negative_rate,
    clip_of_scaled_gradients,
    step_past_the_scaler,
    divided_again,
    updated_too_often,
    hidden_skip,
    scheduler_ahead,
    shared_scaler,
    scale_reset,
    gradients_kept,
    underflowed,
    rounded_away,
    clip_after_step,
    scheduler_twice,
    schedule_by_micro_batch,
    stepped_twice,
    left_out,
    climbs,
    wrong_shares,
)
"""All checks; of several faults in one step the first is told."""

BEFORE_NORM: tuple[Check, ...] = (clip_of_scaled_gradients, step_past_the_scaler)
"""Those that explain a norm that overflows."""

SKIP_CHECKS: tuple[Check, ...] = (
    clip_of_scaled_gradients,
    hidden_skip,
    scheduler_ahead,
    shared_scaler,
)
"""Those that mean something in a step that the scaler skipped."""


def first_fault(facts: StepFacts, checks: tuple[Check, ...] | None = None) -> Origin | None:
    """The first check that finds a fault.

    Args:
        facts: of a step.
        checks: those to make; by default all.
    """
    found = (check(facts) for check in checks or CHECKS)
    return next((origin for origin in found if origin is not None), None)
