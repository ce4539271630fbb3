"""The loss never fell, or has stopped falling.

What it detects
    A log from the start of training in which the loss at the end is no lower than at the start,
    to within 1.2 % and with the noise counted against us (a warning). So is one in which the first
    50 steps threw the loss up, or up and down, together with the gradient norm, and which then
    stood where it had begun. And a loss that fell but has gained nothing for at least two fifths
    of the run (an info).

Why it matters
    A run that never learned is wasted from its first step: labels, graph, learning rate or
    optimizer are not connected. A run that has stopped is done, or needs another schedule.

Evidence
    Medians of the loss over the run.

Silent when
    A loss is 0 or negative, its noise is above 20 %, the log does not begin at the start, fewer
    than 100 losses are finite, the log holds rewards (by which reinforcement learning is judged),
    or the noise is too large to exclude that it fell by more than 1.2 %: fine-tuning often gains
    no more than that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.clipping import STARVED, clip_of, cut
from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.loss_course import BLOCKS, NO_GAIN, Course, course, never_learned
from forensics.diagnose.optimizer_facts import divides_by_its_size
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.thrown_off import ThrownOff, thrown_off
from forensics.diagnose.wording import factor, number, percent, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray

DECAYED = 0.2
"""Share of the highest rate at which a schedule has come down: cosines end at a tenth or at 0."""


@dataclass(frozen=True)
class Thresholds:
    """What counts as no gain."""

    gain: float = threshold(
        NO_GAIN[0], "fine-tuning that gains 2 % in 20,000 steps is never flagged"
    )
    errors: float = threshold(
        NO_GAIN[1], "standard errors added to the gain: 0 of 1,000 healthy runs"
    )
    noise: float = threshold(0.2, "above it neither a fall nor its absence can be told")
    rows: int = threshold(100, "fewer losses do not tell a plateau from a slow start")
    fresh: int = threshold(NO_GAIN[2], "a log that begins later is the middle of a run")
    stopped: float = threshold(0.4, "share of the run; schedules spend less on their last stage")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    if why := no_measure(signals):
        return why
    count = len(course(signals).loss)
    return f"too few losses ({thresholds.rows} needed)" if count < thresholds.rows else ""


@rule(thresholds=Thresholds, needs=("loss",), too_little=_too_little)
def loss_plateau(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    path = course(signals)
    if len(path.loss) < thresholds.rows or path.medians.min() <= 0:
        return
    if no_measure(signals):
        return
    thrown = signals.derived(thrown_off)
    if thrown is not None:
        yield _thrown(signals, path, thrown)
        return
    if path.row_noise > thresholds.noise * median(path.medians):
        return
    if signals.derived(never_learned, thresholds.gain, thresholds.errors, thresholds.fresh):
        yield _never(signals, path)
        return
    stalled = _stopped_at(path, thresholds.stopped)
    if stalled is not None:
        yield _stopped(signals, path, stalled)


def _stopped_at(path: Course, share: float) -> int | None:
    """The block from which on nothing more was gained, if that is long ago."""
    medians = path.medians
    end = median(medians[-max(3, len(medians) // 5) :])
    tolerance = max(0.005 * end, 2 * path.noise)
    reached = np.flatnonzero(medians <= end + tolerance)
    block = int(reached[0])
    fell = float(medians[0]) - end > max(0.05 * end, 6 * path.noise)
    rose = float(medians[-1]) > end + 3 * tolerance
    long_ago = len(medians) - block >= share * len(medians)
    return block if fell and long_ago and not rose and len(medians) == BLOCKS else None


def _evidence(signals: Signals, path: Course) -> tuple[Evidence, ...]:
    """Five block medians over the run, at the middle step of each."""
    blocks = np.unique(np.linspace(0, len(path) - 1, 5).round().astype(np.int64))
    middles = path.rows[(path.bounds[blocks] + path.bounds[blocks + 1] - 1) // 2]
    values: FloatArray = path.medians[blocks]
    return (
        Evidence(
            signal="median loss of a fortieth of the run",
            steps=tuple(int(step) for step in signals.step[middles]),
            values=tuple(float(value) for value in values),
        ),
    )


def _never(signals: Signals, path: Course) -> Finding:
    start, end = median(path.medians[:8]), median(path.medians[-8:])
    return Finding(
        rule="loss-plateau",
        severity=Severity.WARNING,
        message=(
            f"the loss never fell: {number(end)} at the end, {number(start)} at the start, in "
            f"{steps(len(path.loss))} with a loss"
        ),
        first_step=signals.step_at(int(path.rows[0])),
        last_step=signals.last_step,
        evidence=_evidence(signals, path),
        cause=_never_cause(signals),
        remedy=(
            "Train on one batch for a few hundred steps: a model that cannot overfit it has a "
            "broken path from loss to weights; one that can has a data or learning-rate problem."
        ),
    )


def _thrown(signals: Signals, path: Course, thrown: ThrownOff) -> Finding:
    """The first updates undid the start; told is what they did to loss and norm."""
    at = signals.step_at(thrown.worst)
    top = f"up to {number(thrown.height)} at step {at:,}"
    best = path.loss[: thrown.worst + 1].min()
    low = f"down to {number(float(best))}, " if best < 0.9 * thrown.start else ""
    rows = [int(path.rows[0]), max(thrown.worst - 1, 0), thrown.worst, int(path.rows[-1])]
    return Finding(
        rule="loss-plateau",
        severity=Severity.WARNING,
        message=(
            f"the loss is no better than it began: {number(thrown.start)} at step "
            f"{signals.step_at(int(path.rows[0])):,}, {low}{top}, {number(thrown.end)} at the end"
        ),
        first_step=signals.step_at(int(path.rows[0])),
        last_step=signals.last_step,
        evidence=(
            signals.evidence("loss", signals.loss, rows),
            signals.evidence("grad_l2_pre_clip", signals.norm, rows),
            *_evidence(signals, path),
        ),
        cause=_thrown_cause(signals, thrown),
        remedy=(
            "Start again with a learning rate ten times lower, or with a warm-up over the first "
            "hundreds of steps; going on from here is of no use. If it happens again, train on "
            "one batch for a few hundred steps: a model that cannot overfit it has another fault."
        ),
    )


def _thrown_cause(signals: Signals, thrown: ThrownOff) -> str:
    rate = signals.lr[: thrown.worst + 1]
    rate = rate[np.isfinite(rate)]
    top = f" ({number(float(rate.max()))})" if len(rate) else ""
    clip = ""
    if np.isfinite(clip_of(signals).threshold) and divides_by_its_size(signals):
        clip = " The clip does not shorten the steps of an optimizer that divides by their size."
    known = np.isfinite(thrown.norm)
    grew = f": the gradient norm grew {factor(thrown.norm)} with them" if known else ""
    return (
        f"The learning rate{top} is far too high for the first updates{grew}. A model that was "
        f"thrown so far often predicts the same for every input: its units have died.{clip}"
    )


def _never_cause(signals: Signals) -> str:
    rate = signals.lr[np.isfinite(signals.lr)]
    norm = median(signals.norm)
    if len(rate) and rate.max() == 0:
        return "The learning rate is 0 throughout."
    if norm == 0:
        return "The gradients are 0: the graph is cut between loss and weights, or all is frozen."
    known = f" (norm {number(norm)})" if np.isfinite(norm) else ""
    if cut(signals) >= STARVED and divides_by_its_size(signals) is None:
        known = (
            f" (norm {number(norm)}, clipped to {number(clip_of(signals).threshold)}: without a "
        )
        known += "second moment, as in SGD, that alone keeps it from learning)"
    top = f" of {number(float(rate.max()))}" if len(rate) else ""
    return (
        f"Gradients arrive{known} but change nothing that counts: labels that do not belong to the "
        f"inputs, a learning rate{top} that is far too low or so high that it jumps about, "
        f"parameters that the optimizer does not hold, or updates rounded away in bf16."
        if np.isfinite(norm)
        else f"Labels that do not belong to the inputs, a learning rate{top} that does not fit, "
        "or a graph cut between loss and weights."
    )


def _stopped(signals: Signals, path: Course, block: int) -> Finding:
    first = int(path.rows[int(path.bounds[block])])
    end = median(path.medians[block:])
    share = (len(signals) - first) / len(signals)
    return Finding(
        rule="loss-plateau",
        severity=Severity.INFO,
        message=(
            f"the loss has gained nothing since step {signals.step_at(first):,} "
            f"({percent(share)} of the run): it stays at {number(end)}"
        ),
        first_step=signals.step_at(first),
        last_step=signals.last_step,
        evidence=_evidence(signals, path),
        cause="Converged at this learning rate, model and data, or stuck.",
        remedy=_stopped_remedy(signals),
    )


def _stopped_remedy(signals: Signals) -> str:
    """What may lower it, by what the rate did since: a decay that it had already is no advice."""
    rate = signals.lr[np.isfinite(signals.lr)]
    end = float(rate[-1]) if len(rate) else np.nan
    if len(rate) and end <= DECAYED * rate.max():
        left = f"to {number(end)}, from {number(float(rate.max()))} at most"
        return (
            f"If it should go lower: the learning rate has come down already ({left}), so it is "
            "the model's size, the data, or a longer schedule with a rate that stays up."
        )
    return "If it should go lower, a decay of the learning rate is the first thing to try."
