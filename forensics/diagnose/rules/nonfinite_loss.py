"""The loss is NaN or Inf.

What it detects
    The first step whose loss is written as NaN or Inf, the last finite value before it, and from
    when on every step is bad. One finding an episode; episodes closer than 100 rows are one.

Why it matters
    Nothing is learned from a non-finite loss, and once the weights have taken such a step in, every
    later loss is non-finite too. In fp16 a smaller loss scale cannot help: the scale is applied
    after the loss.

Evidence
    The loss at the last finite rows and at the first bad ones, and the gradient norm before it.

Silent when
    The loss is finite throughout, or a cell is empty: an absent loss is not a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding
from forensics.diagnose.onset import (
    Onset,
    against_growth,
    damage,
    diverging,
    last_value,
    lasts,
    onset,
    stretch,
)
from forensics.diagnose.ranks import all_bad_at_once, everyone, shared_by_all
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.whence import whence
from forensics.diagnose.wording import number
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When two bad stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")


@rule(thresholds=Thresholds, needs=("loss",))
def nonfinite_loss(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of non-finite loss."""
    for episode in told_episodes(np.flatnonzero(signals.loss_bad), thresholds.gap):
        before = onset(signals, episode.first)
        to_end = lasts(signals.loss_bad, signals.present("loss"), episode)
        first = episode.first
        ranks = all_bad_at_once(signals, first)
        yield Finding(
            rule="nonfinite-loss",
            severity=damage(signals, episode, to_end),
            message=_message(signals, episode, before, to_end, ranks),
            first_step=signals.step_at(first),
            last_step=signals.last_step if to_end else signals.step_at(episode.last),
            evidence=(
                signals.evidence("loss", signals.loss, [first - 2, first - 1, first, first + 1]),
                signals.evidence(
                    "grad_l2_pre_clip", signals.norm, list(range(first - 4, first + 1))
                ),
            ),
            cause=_cause(signals, before) + shared_by_all(ranks),
            remedy=_remedy(signals, before, to_end) + _resume(signals, episode, before, to_end),
        )


def _message(signals: Signals, episode: Episode, before: Onset, to_end: bool, ranks: int) -> str:
    kind = number(float(signals.loss[episode.first]))
    silent = ~signals.present("loss")
    when = stretch(signals, episode, signals.loss_bad | silent, to_end)
    ends = ", and the log ends there" if to_end and episode.rows == 1 else ""
    back = "" if to_end else ", and finite again after it"
    last = last_value(signals, before) + (_between(signals, episode) if to_end else "")
    everywhere = f" on {everyone(ranks)}" if ranks else ""
    return f"loss is {kind} {when}{everywhere} ({last}){ends}{back}"


def _between(signals: Signals, episode: Episode) -> str:
    """The last finite loss among the bad ones, as a clause; empty where none is."""
    inside = slice(episode.first, episode.last + 1)
    sound = np.flatnonzero(signals.present("loss")[inside] & ~signals.loss_bad[inside])
    if not len(sound):
        return ""
    row = episode.first + int(sound[-1])
    at = f"{signals.step_at(row):,}"
    return f" before it; the last finite one of all {number(float(signals.loss[row]))} at {at}"


def _resume(signals: Signals, episode: Episode, before: Onset, to_end: bool) -> str:
    """Where to go on from, where nothing finite came after and the advice does not say it yet."""
    said = before.bad_lr or before.applied_before or before.grew
    if said or not to_end or episode.rows < 2 or before.last_loss_row is None:
        return ""
    last = signals.step_at(before.last_loss_row)
    return (
        f" Nothing finite came after: the weights may be NaN, so resume from a checkpoint of step "
        f"{last:,} or before."
    )


def _cause(signals: Signals, before: Onset) -> str:
    if before.bad_lr:
        return "The learning rate is non-finite: the update writes it into every weight."
    if before.applied_before:
        return "The step before took a non-finite gradient into the weights."
    if before.row == 0:
        return (
            "Bad from the first logged step: a NaN in the input, weights that were never "
            "initialised or loaded bad, or a loss that is undefined for this batch."
        )
    if before.grew:
        return diverging(signals, before)
    calm = "The gradient norms were calm before it, so this" if before.calm else "This"
    fp16 = signals.precision == "fp16"
    overflow = "a forward value passed 65,504, the end of fp16, or " if fp16 else ""
    return (
        f"{calm} comes from the forward pass, the loss or the batch: {overflow}log, sqrt or "
        f"division at 0, a probability of exactly 0 or 1 fed to log, a batch whose labels are all "
        f"ignored, a fully masked softmax row, or a NaN in the batch itself."
    )


def _remedy(signals: Signals, before: Onset, to_end: bool) -> str:
    if before.bad_lr:
        return "Mend the schedule (a division by 0 in its warm-up is common) and resume before it."
    if before.applied_before:
        taken = signals.step_at(before.row - 1)
        return f"{whence(signals.run, taken)}; skip steps with bad gradients."
    if before.grew:
        return against_growth(signals)
    if signals.precision == "fp16":
        again = "every step" if to_end else "the step"
        return (
            f"A smaller loss scale cannot help: it is applied after the loss. Check the batch of "
            f"{again}, and compute that operation in fp32, or run in bf16 where the device has it."
        )
    earliest, step = signals.table.first_of(before.row), signals.step_at(before.row)
    several = earliest < step
    batch = f"batches of steps {earliest:,} to {step:,}" if several else "batch of this step"
    return (
        f"Check the {batch} for NaN, empty or ignored labels; then use forms that take "
        "logits (log_softmax, BCE with logits), clamp or add an epsilon before log, sqrt and "
        "division, and keep at least one unmasked key in each softmax row."
    )
