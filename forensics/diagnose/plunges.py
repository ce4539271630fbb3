"""Losses that fall to depths where no loss can be, and are back a few steps later."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.finite import FiniteSeries
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import LossLevel, loss_level
from forensics.diagnose.spikes import Spikes, find_spikes
from forensics.diagnose.wording import counted, factor, number, times
from forensics.runlog.steps import BoolArray, FloatArray

CALM = 3.0
"""Times its usual value up to which a gradient norm says that no such loss was trained on."""


def plunge_finding(signals: Signals, z: float, absurd: float) -> Finding | None:
    """One finding for all plunges of the run (see ``plunges``), or None."""
    spikes = plunges(signals, z, absurd)
    if spikes is None:
        return None
    loss = loss_level(signals).back(-spikes.values)
    rows = spikes.rows[spikes.peak]
    first, last = int(spikes.rows[spikes.first[0]]), int(spikes.rows[spikes.last[-1]])
    deepest = int(np.argmin(loss[spikes.peak]))
    row = int(rows[deepest])
    at = f"{signals.step_at(row):,}"
    fell = f"the loss fell to {number(float(signals.loss[row]))} at step {at}"
    before = number(float(-loss_level(signals).back(spikes.before)[deepest]))
    count = len(spikes)
    again = f", and {times(count)} so far below 0 in all" if count > 1 else ""
    back = spikes.rows_to_recover(deepest)
    return Finding(
        rule="loss-spike",
        severity=Severity.INFO if no_measure(signals) else Severity.WARNING,
        message=f"{fell}, from {before}{_back(signals, row, back)}{again}",
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence("loss", signals.loss, list(range(row - 2, row + 3))),
            signals.evidence("grad_l2_pre_clip", signals.norm, list(range(row - 2, row + 3))),
        ),
        cause=_cause(signals, row),
        remedy=(
            f"Compute the loss of the batch of step {at} again, term by term, and look at how it "
            f"is summed, divided and logged. No loss of this run belongs there."
        ),
    )


def _back(signals: Signals, row: int, rows: int | None) -> str:
    if rows is None:
        return ", and did not come back"
    later = signals.step_at(row + rows) - signals.step_at(row)
    return f", and was back {counted(later, 'step')} later"


def _cause(signals: Signals, row: int) -> str:
    norm, usual = float(signals.norm[row]), median(signals.norm)
    if np.isfinite(norm) and usual > 0 and norm <= CALM * usual:
        return (
            f"The gradient norm was calm there ({number(norm)}, median {number(usual)}), so this "
            f"is hardly what was trained on: a sum that overflowed, a division by a count of "
            f"nearly 0, a placeholder, or a term that carries no gradient."
        )
    grew = f" (the gradient norm was {factor(norm / usual)} its median)" if norm > usual else ""
    return (
        f"One batch whose loss is not bounded below{grew}: a logarithm or a quotient of nearly 0 "
        f"with the wrong sign, or targets outside their range."
    )


def plunges(signals: Signals, z: float, absurd: float) -> Spikes | None:
    """Falls below 0 by ``absurd`` times the losses before and at the start, if there are any.

    Args:
        signals: the run.
        z: robust standard deviations by which such a loss lies outside its course.
        absurd: times the loss before (128 values), that at the start, and 1.

    Returns:
        Spikes of the negative of the loss, in the space of ``loss_level``; None without any.
    """
    level = loss_level(signals)
    lowest = float(level.series.values.min()) if len(level.series) else 0.0
    if not np.sinh(lowest) * level.unit < -absurd * max(level.start, 1.0):
        return None
    found = find_spikes(
        FiniteSeries(level.series.rows, -level.series.values),
        signals.loss_bad,
        lambda values, levels: _is_absurd(level, values, levels, absurd),
        z,
    )
    return found if len(found) else None


def _is_absurd(
    level: LossLevel, values: FloatArray, levels: FloatArray, absurd: float
) -> BoolArray:
    high, low = level.back(values), level.back(levels)
    usual = np.maximum(np.abs(low), max(level.start, 1.0))
    return np.asarray(high > absurd * usual, dtype=bool)
