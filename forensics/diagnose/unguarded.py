"""A loop that takes a step with a bad gradient: what stays of it, and what guards against it."""

from __future__ import annotations

import numpy as np

from forensics.runlog.steps import StepTable


def damage_stayed(steps: StepTable, step: int) -> bool:
    """Was a bad step taken, and nothing finite after it until the end of the log?

    A log that does not tell what was skipped, or that ends with the step, says nothing.
    """
    rows = np.flatnonzero(steps.step == step)
    if not len(rows) or not steps.present("skipped")[rows[0]] or steps["skipped"][rows[0]]:
        return False
    after = slice(int(rows[0]) + 1, None)
    bad = np.zeros(len(steps), dtype=bool)
    for name in ("loss", "grad_l2_pre_clip"):
        if name in steps:
            bad |= steps.present(name) & ~np.isfinite(steps[name])
    return bool(len(bad[after]) and bad[after].all())


def guard(*, scaling: bool) -> str:
    """What keeps a bad gradient out of the weights, as a clause."""
    if scaling:
        return "step through scaler.step(optimizer) and scaler.update() on every path"
    return "skip the step where the norm before the clip is not finite"
