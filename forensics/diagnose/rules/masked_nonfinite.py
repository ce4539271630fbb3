"""The log hides a non-finite loss.

What it detects
    Steps whose gradient norm is NaN or Inf while the loss is written as exactly 0, repeats its last
    value bit for bit although a step was taken, or is missing although it is written elsewhere.
    Trainers that average NaN away print 0; loggers that print a loss only if it is ≥ 0 leave it
    out. One finding an episode; episodes closer than 100 rows are one. Where no norm is logged, a
    loss that is exactly 0 from one step to the next and until the end.

Why it matters
    The curve looks calm, even perfect, while the run is dead.

Evidence
    The norm and the loss as written.

Silent when
    The loss was 0 before or on its way there, one lone value is missing, or the step was skipped:
    a skipped step may repeat its loss honestly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, runs_of, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, span
from forensics.diagnose.zero_loss import switched_off
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How long a disguise must last."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    repeats: int = threshold(
        3, "losses printed with 4 digits agree by chance twice in a row, hardly three times"
    )
    zeros: int = threshold(30, "rows without a norm beside them: batches without labels are fewer")
    part: float = threshold(0.375, "of a short log up to there, as in gradient-vanishing")


@rule(thresholds=Thresholds, needs=("loss",))
def masked_nonfinite(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of disguised losses."""
    if not signals.has("grad_l2_pre_clip"):
        yield from _without_norms(signals, thresholds)
        return
    if not signals.norm_bad.any():
        return
    zero, frozen, gone = _zero(signals), _frozen(signals, thresholds), _gone(signals, thresholds)
    for episode in told_episodes(np.flatnonzero(zero | frozen | gone), thresholds.gap):
        first, last = episode.first, episode.last
        how = _how(signals, episode, zero, frozen)
        yield Finding(
            rule="masked-nonfinite",
            severity=Severity.ERROR,
            message=f"{how} at {_when(signals, episode)} while the gradient norm is "
            f"{number(float(signals.norm[first]))}",
            first_step=signals.step_at(first),
            last_step=signals.step_at(last),
            evidence=(
                signals.evidence("loss", signals.loss, [first - 1, first, last]),
                signals.evidence("grad_l2_pre_clip", signals.norm, [first - 1, first, last]),
            ),
            cause="The logger hides a NaN: it averages it away (a filter of NaN and Inf prints 0), "
            "prints a loss only if it is ≥ 0, or keeps the last good value.",
            remedy="Log the raw loss of every step (in the HF Trainer logging_nan_inf_filter="
            "False), and take the first step with a non-finite norm as the start.",
        )


def _without_norms(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """A loss that is 0 for good and was not going there: what a filter of NaN prints."""
    first = switched_off(signals)
    if first is None:
        return
    rows = int(signals.present("loss")[first:].sum())
    if rows < min(thresholds.zeros, thresholds.part * len(signals)):
        return
    before = int(np.flatnonzero(signals.present("loss")[:first])[-1])
    yield Finding(
        rule="masked-nonfinite",
        severity=Severity.ERROR,
        message=f"loss is exactly 0 from step {signals.step_at(first):,} to the end, after "
        f"{number(float(signals.loss[before]))} at step {signals.step_at(before):,}",
        first_step=signals.step_at(first),
        last_step=signals.last_step,
        evidence=(signals.evidence("loss", signals.loss, [before - 1, before, first, first + 1]),),
        cause="A NaN that a logger averages away (a filter of NaN and Inf prints 0), or batches "
        "without labels; the gradient norm, which is not logged, would tell.",
        remedy="Log the raw loss and the gradient norm of every step (in the HF Trainer "
        "logging_nan_inf_filter=False), and count the labels of the first batch with loss 0.",
    )


def _zero(signals: Signals) -> BoolArray:
    """Loss exactly 0 with a bad norm, where the last other loss was not 0; shape (rows,)."""
    written = signals.present("loss") & np.isfinite(signals.loss)
    zero = written & (signals.loss == 0.0) & signals.norm_bad
    if zero.any():
        earlier = written & (signals.loss != 0.0)
        zero &= np.logical_or.accumulate(earlier)
    return np.asarray(zero, dtype=bool)


def _frozen(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """The same loss again and again with bad norms though no step says it was skipped."""
    same = np.zeros(len(signals), dtype=bool)
    same[1:] = (signals.loss[1:] == signals.loss[:-1]) & np.isfinite(signals.loss[1:])
    same &= signals.norm_bad & ~signals.skipped
    return _long(same, thresholds.repeats - 1)


def _gone(signals: Signals, thresholds: Thresholds) -> BoolArray:
    """The loss is left out in step with bad norms, though it is written on most rows before."""
    written = signals.present("loss")
    gone = signals.norm_bad & ~written & ~signals.skipped
    if not gone.any():
        return gone
    before = np.concatenate(([0], np.cumsum(written)[:-1]))
    usual = 2 * before > np.arange(len(signals))
    return _long(gone & usual, thresholds.repeats)


def _long(mask: BoolArray, least: int) -> BoolArray:
    """Only the runs of at least so many rows."""
    first, last = runs_of(mask)
    kept = last - first + 1 >= least
    if not kept.any():
        return np.zeros(len(mask), dtype=bool)
    change = np.zeros(len(mask) + 1, dtype=np.int64)
    change[first[kept]] = 1
    change[last[kept] + 1] = -1
    return np.asarray(np.cumsum(change[:-1]) > 0, dtype=bool)


def _how(signals: Signals, episode: Episode, zero: BoolArray, frozen: BoolArray) -> str:
    if zero[episode.first]:
        return "loss is exactly 0"
    if frozen[episode.first]:
        return f"loss stands still at {number(float(signals.loss[episode.first]))}"
    return "no loss is written"


def _when(signals: Signals, episode: Episode) -> str:
    whole = episode.rows == episode.last - episode.first + 1
    stretch = span(signals.step_at(episode.first), signals.step_at(episode.last))
    return stretch if whole else f"{episode.rows:,} of {stretch}"
