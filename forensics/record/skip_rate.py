"""The skip-rate alarm: too many skipped steps, told apart from a loss scale that calibrates."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW = 1000
"""The rate is always skips in the last 1,000 steps ÷ 1,000; a partial window false-alarms."""

STEPS_ABOVE = 100
"""So many steps in a row must be above the rate."""

CALIBRATED_AFTER = 200
"""Clean steps in a row that end the calibration at the start of a run."""


def calibration_skips(init_scale: float) -> int:
    """How many skips at the start are the scaler finding its scale: log2 of it, and one."""
    return max(0, math.ceil(math.log2(init_scale))) + 1 if init_scale > 1.0 else 0


class SkipRateAlarm:
    """Watches which steps are skipped; speaks once an episode.

    Args:
        max_rate: skips in the last 1,000 steps ÷ 1,000, above which a step counts.
        max_in_a_row: skipped steps in a row that raise the alarm at once.
        exempt: skips at the start of the run that do not count towards the rate, as long as no
            200 clean steps in a row have been seen.
    """

    def __init__(self, *, max_rate: float = 0.05, max_in_a_row: int = 100, exempt: int = 0) -> None:
        self.max_rate, self.max_in_a_row = max_rate, max_in_a_row
        self._exempt = exempt
        self._window: deque[bool] = deque(maxlen=WINDOW)
        self._in_window = 0
        self.in_a_row = 0
        self._clean_in_a_row = 0
        self._above = 0
        self._raised = False

    @property
    def rate(self) -> float:
        """Skips in the last 1,000 steps ÷ 1,000, the leading calibration left out."""
        return self._in_window / WINDOW

    def update(self, step: int, skipped: bool) -> str | None:
        """Take one step in; what is wrong, in the step where the alarm begins."""
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        self._clean_in_a_row = 0 if skipped else self._clean_in_a_row + 1
        if self._clean_in_a_row >= CALIBRATED_AFTER:
            self._exempt = 0
        counts = skipped and self._exempt == 0
        self._exempt -= int(skipped and self._exempt > 0)
        if len(self._window) == WINDOW:
            self._in_window -= self._window[0]
        self._window.append(counts)
        self._in_window += counts
        self._above = self._above + 1 if self.rate > self.max_rate else 0
        return self._transition(step)

    def _transition(self, step: int) -> str | None:
        now = self.in_a_row >= self.max_in_a_row or self._above >= STEPS_ABOVE
        began, self._raised = now and not self._raised, now
        if not began:
            return None
        if self.in_a_row >= self.max_in_a_row:
            return f"step {step}: the last {self.in_a_row} steps were all skipped"
        return (
            f"step {step}: {self.rate:.1%} of the last {WINDOW:,} steps were skipped, above "
            f"{self.max_rate:.0%} for {STEPS_ABOVE} steps in a row"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on counting."""
        return {
            "window": [int(skipped) for skipped in self._window],
            "exempt": self._exempt,
            "in_a_row": self.in_a_row,
            "clean_in_a_row": self._clean_in_a_row,
            "above": self._above,
            "raised": self._raised,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting where ``state_dict`` was taken."""
        self._window = deque(map(bool, state["window"]), maxlen=WINDOW)
        self._in_window = sum(self._window)
        self._exempt = state["exempt"]
        self.in_a_row = state["in_a_row"]
        self._clean_in_a_row = state["clean_in_a_row"]
        self._above = state["above"]
        self._raised = state["raised"]
