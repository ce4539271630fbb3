"""Where the learning rate's warm-up ends: what is normal before it says little about after."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.signals import Signals

_AT_PEAK = 0.99
_ROSE = 0.5


def warmup_end(signals: Signals) -> int:
    """First step after the warm-up; the first step of the log where there is none.

    ``run.json`` says it where it does; else it is where the rate first comes within 1 % of its
    highest, if it began below half of that.
    """
    start = signals.step_at(0) if len(signals) else 0
    manifest = signals.run.manifest
    stated = None if manifest is None else manifest.schedule.get("warmup_steps")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return max(start, stated)
    rows = np.flatnonzero(np.isfinite(signals.lr))
    rate = signals.lr[rows]
    if len(rows) == 0 or not rate.max() > 0 or rate[0] > _ROSE * rate.max():
        return start
    return signals.step_at(int(rows[int(np.argmax(rate >= _AT_PEAK * rate.max()))]))
