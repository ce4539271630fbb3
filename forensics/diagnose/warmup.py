"""The step from which on snapshots tell the training and not its warm-up."""

from __future__ import annotations

from forensics.diagnose.schedule import warmup_rows
from forensics.diagnose.signals import Signals


def warmup_end(signals: Signals) -> int:
    """First step after the warm-up; the first step of the log where there is none."""
    if len(signals) == 0:
        return 0
    row = warmup_rows(signals)
    return signals.step_at(row) if row < len(signals) else signals.last_step + 1
