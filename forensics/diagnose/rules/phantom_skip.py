"""Steps were skipped though nothing was wrong with them.

What it detects
    Skipped steps whose loss and gradient norm are written and finite, and after which the loss
    scale did not fall. One finding an episode; episodes closer than 1,000 rows are one.

Why it matters
    Work is thrown away. Something refuses the step that the log does not show: a stale flag, a
    scaler that was told of an overflow by another optimizer, a norm that overflowed elsewhere.

Evidence
    Loss, norm and loss scale at the first of them.

Silent when
    The skip reason names a guard (``other``), the norm is a placeholder or repeats the last one
    (loggers do so on a skip), the scale fell (then it was an overflow), or a scaler whose
    hysteresis is not known may have forgiven one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, power_of_two, span, steps
from forensics.frozen import dataclass
from forensics.runlog.schema import SKIP_OTHER
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How many make a fault."""

    gap: int = threshold(1000, "the window of the skip rate")
    least: int = threshold(3, "one or two may be a race in a logger, or the hysteresis of a scaler")


@rule(thresholds=Thresholds, needs=("skipped", "loss", "grad_l2_pre_clip"))
def phantom_skip(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of unexplained skips."""
    for episode in told_episodes(np.flatnonzero(_phantom(signals)), thresholds.gap):
        if signals.scaling.active and signals.scaling.hysteresis != 1:
            continue  # a hysteresis forgives overflows without a trace in the scale
        first, last = signals.step_at(episode.first), signals.step_at(episode.last)
        near = [episode.first - 1, episode.first, episode.first + 1]
        yield Finding(
            rule="phantom-skip",
            severity=_severity(signals, episode, thresholds.least),
            message=f"{steps(episode.rows)} skipped at {span(first, last)} though loss "
            f"({number(float(signals.loss[episode.first]))}) and norm "
            f"({number(float(signals.norm[episode.first]))}) are finite{_scale(signals, episode)}",
            first_step=first,
            last_step=last,
            evidence=(
                signals.evidence("loss", signals.loss, near),
                signals.evidence("grad_l2_pre_clip", signals.norm, near),
                signals.evidence("scaler_scale", signals.scale, near),
            ),
            cause="A guard that the log does not name, a flag that is never reset after a real "
            "overflow, or gradients of a second optimizer under the same scaler.",
            remedy="Log why a step is skipped (skip_reason), and test the flag that decides it on "
            "the first of these steps.",
        )


def _phantom(signals: Signals) -> BoolArray:
    """Skipped rows that nothing in the log explains, shape (rows,)."""
    norm = signals.norm
    calm = np.isfinite(signals.loss) & np.isfinite(norm) & (norm > 0)
    phantom = signals.skipped & calm & ~signals.reason_starts(SKIP_OTHER)
    if not phantom.any():
        return np.asarray(phantom, dtype=bool)
    phantom[signals.scaling.falls.rows] = False
    phantom[1:] &= norm[1:] != norm[:-1]
    return np.asarray(phantom, dtype=bool)


def _severity(signals: Signals, episode: Episode, least: int) -> Severity:
    """A warning only where no scaler can be behind it: none at work, or one without hysteresis."""
    scaling = signals.scaling
    certain = scaling.active is False or (scaling.active and scaling.hysteresis == 1)
    return Severity.WARNING if certain and episode.rows >= least else Severity.INFO


def _scale(signals: Signals, episode: Episode) -> str:
    if not signals.scaling.active or not np.isfinite(signals.scale[episode.first]):
        return ""
    return f" and the scale stays at {power_of_two(float(signals.scale[episode.first]))}"
