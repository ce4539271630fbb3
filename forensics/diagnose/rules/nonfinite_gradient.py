"""The gradient is NaN or Inf though the loss is finite.

What it detects
    Steps whose gradient norm before clipping is NaN or Inf while the loss is not: the bad value was
    born in backward, or the loss scale made it. An overflow that a loss scaler deals with is its
    routine and left out. Where the log does not tell whether a scaler was at work, short stretches
    are told together as one info. One finding an episode; episodes closer than 100 rows
    (1,000 with a loss scaler) are one.

Why it matters
    Without a guard such a gradient goes into every weight and the next loss is NaN. With one the
    step is lost, and the operation that made it will do so again.

    Where the logger leaves NaN out of its mean of the loss (the Hugging Face Trainer's
    logging_nan_inf_filter) a finite loss proves nothing, so the cause stays open.

Evidence
    The norm and the loss around the first bad step.

Silent when
    A loss scaler skipped the step and its scale was above 1, the loss itself is non-finite, or only
    the norm overflowed (the rule norm-overflow tells that).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.bad_parameters import born, culprit_of
from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.lost_norms import lost_norms
from forensics.diagnose.masked_losses import loss_is_filtered
from forensics.diagnose.onset import against_growth, damage, diverging, lasts, onset, stretch
from forensics.diagnose.ranks import all_bad_at_once, finite_on_all, rank_count, shared_by_all
from forensics.diagnose.reward_driven import one_of_several
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.whence import whence
from forensics.diagnose.wording import number, span
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """When two bad stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    scaler_gap: int = threshold(1000, "with a loss scaler: the window of the skip rate")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",))
def nonfinite_gradient(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode, and one for all short stretches that a scaler may explain."""
    bad = signals.norm_bad & ~signals.loss_bad
    bad &= ~(signals.norm_overflowed | signals.derived(lost_norms))  # norm-overflow tells those
    routine = signals.scaling.routine
    gap = thresholds.scaler_gap if signals.scaling.active else thresholds.gap
    for episode in told_episodes(np.flatnonzero(bad & ~routine), gap):
        yield _finding(signals, episode)
    perhaps = np.flatnonzero(bad & routine)
    if signals.scaling.active is None and len(perhaps):
        yield _perhaps_routine(signals, Episode(int(perhaps[0]), int(perhaps[-1]), len(perhaps)))


def _finding(signals: Signals, episode: Episode) -> Finding:
    bad = signals.norm_bad | signals.loss_bad
    written = signals.present("grad_l2_pre_clip") | signals.present("loss")
    to_end = lasts(bad, written, episode)
    first = signals.step_at(episode.first)
    culprit = culprit_of(signals, first)
    before = onset(signals, episode.first)
    return Finding(
        rule="nonfinite-gradient",
        severity=damage(signals, episode, to_end),
        message=_message(signals, episode, bad | ~written, to_end),
        first_step=first,
        last_step=signals.last_step if to_end else signals.step_at(episode.last),
        subject=culprit.name if culprit is not None else "",
        evidence=_evidence(signals, episode),
        cause=(diverging(signals, before) if before.grew else _cause(signals, episode.first))
        + shared_by_all(all_bad_at_once(signals, episode.first)),
        remedy=against_growth(signals) if before.grew else _remedy(signals, episode, to_end),
    )


def _message(signals: Signals, episode: Episode, bad: np.ndarray, to_end: bool) -> str:
    first = episode.first
    kind = number(float(signals.norm[first]))
    when = stretch(signals, episode, bad, to_end)
    loss = signals.loss[first]
    whose = "rank 0's" if rank_count(signals) > 1 else "the"
    beside = f"while {whose} loss is finite ({number(float(loss))})" if np.isfinite(loss) else ""
    if np.isfinite(loss) and loss_is_filtered(signals):
        beside = f"beside a logged loss of {number(float(loss))}, a mean that leaves NaN out"
    elif _is_hidden(signals, first):
        beside = "while the loss reads 0, as a NaN does that a logger leaves out of its mean"
    skipped = bool(signals.skipped[first : episode.last + 1][bad[first : episode.last + 1]].all())
    fate = ", skipped" if skipped else ""
    back = "" if to_end else ", and finite again after it"
    return f"gradient norm is {kind} {when} {beside}".rstrip() + fate + back


def _evidence(signals: Signals, episode: Episode) -> tuple[Evidence, ...]:
    rows = list(range(episode.first - 2, episode.first + 3))
    return (
        signals.evidence("grad_l2_pre_clip", signals.norm, rows),
        signals.evidence("loss", signals.loss, rows),
    )


def _is_hidden(signals: Signals, row: int) -> bool:
    """Does the loss read exactly 0, having been another number: a NaN that is logged as 0?"""
    past = signals.loss[:row]
    return bool(signals.loss[row] == 0 and (np.isfinite(past) & (past != 0)).any())


def _cause(signals: Signals, row: int) -> str:
    singular = (
        "an operation whose derivative is infinite or 0/0 where its value is finite: sqrt or a "
        "norm at exactly 0, division, log, or where() around one of them (the branch not taken "
        "still sends 0 × inf back)"
    )
    if one_of_several(signals):
        return (
            "Backward ran several times for the step, and the loss given is perhaps that of one "
            "micro-batch: another's may be NaN (its data or labels). If none is, born in backward: "
            f"{singular}."
        )
    forward = (
        "born in the forward pass, the loss or the batch (log, sqrt or division at 0, labels that "
        "are all ignored)"
    )
    if loss_is_filtered(signals):
        return (
            "The log does not tell whether the loss was NaN first: the trainer leaves NaN losses "
            f"out of its mean. If it was, {forward}; if not, in backward: {singular}."
        )
    if _is_hidden(signals, row):
        return (
            f"The loss itself was NaN, in all likelihood: {forward}, or else in backward: "
            f"{singular}."
        )
    if rank_count(signals) > 1 and not finite_on_all(signals, row):
        return (
            "The loss of another rank is perhaps NaN: the reduction gives its gradient to all. If "
            f"it is, {forward}; if none is, in backward: {singular}."
        )
    told = _kind_of_cause(signals, singular)
    return f"{told} {born(signals, signals.step_at(row))}".rstrip()


def _kind_of_cause(signals: Signals, singular: str) -> str:
    """What makes a gradient bad behind a loss that is known to be finite."""
    if signals.scaling.active:
        return f"No loss scale helps, so it is no overflow of the scaled gradients but {singular}."
    if signals.precision == "fp16":
        return f"Overflow of fp16 gradients, or {singular}."
    return f"Born in backward: {singular}."


def _remedy(signals: Signals, episode: Episode, to_end: bool) -> str:
    first = signals.step_at(episode.first)
    when = span(signals.table.first_of(episode.first), first)
    name = (
        f"Look at every micro-batch of step {first:,} for NaN and for labels that are all ignored; "
        "give the recorder the loss of each (add_loss)."
        if one_of_several(signals)
        else f"Anomaly mode on {when} names the operation; put the guard before it (clamp "
        f"or an epsilon inside sqrt, log and division), not around its result."
    )
    if loss_is_filtered(signals) or _is_hidden(signals, episode.first):
        name = f"Look at the batch and the loss of {when} first. {name}"
    if signals.skipped.any() or not signals.has("skipped"):
        return name
    again = f"{whence(signals.run, signals.table.first_of(episode.first))}. " if to_end else ""
    return f"{again}{name} Skip steps whose gradient norm is not finite."


def _perhaps_routine(signals: Signals, all_of_them: Episode) -> Finding:
    first, last = signals.step_at(all_of_them.first), signals.step_at(all_of_them.last)
    kind = number(float(signals.norm[all_of_them.first]))
    where = f"step {first:,}" if first == last else f"{first:,} to {last:,}"
    count = "" if all_of_them.rows == 1 else f"{signals.told_rows(all_of_them.rows)} from "
    filtered = loss_is_filtered(signals)
    beside = (
        "beside a finite mean loss, NaN left out" if filtered else "while the loss stays finite"
    )
    return Finding(
        rule="nonfinite-gradient",
        severity=Severity.INFO,
        message=f"gradient norm is {kind} at {count}{where} {beside}",
        first_step=first,
        last_step=last,
        evidence=_evidence(signals, all_of_them),
        cause="In fp16 this is the loss scaler finding its scale. The log does not say whether one "
        "was at work; in bf16 or fp32 an operation of backward made the value"
        + (", or the loss was NaN." if filtered else "."),
        remedy="Log the loss scale and the skipped steps: they tell the two apart.",
    )
