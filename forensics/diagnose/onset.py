"""What a log shows just before and just after a value goes bad: the evidence for its cause."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.series import Episode, median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, span
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray

PAST = 1000
"""Rows whose median says what was usual."""
RECENT = 3
"""Rows just before the first bad one; growth must still be there in the last of them."""
GROWN = 5.0
"""A norm this many times its median had left its noise (healthy GPT pre-training norms stay within
2.6 times theirs)."""


@dataclass(frozen=True)
class Onset:
    """The surroundings of the first bad row.

    Attributes:
        row: the first bad row.
        last_loss_row: last row before it with a finite loss, or None.
        norm_growth: highest of the last 3 finite norms ÷ their earlier median; NaN where unknown.
        bad_lr: a learning rate that is NaN or Inf there or in the row before.
        applied_before: the row before took a non-finite gradient into the weights.
    """

    row: int
    last_loss_row: int | None
    norm_growth: float
    bad_lr: bool
    applied_before: bool

    @property
    def grew(self) -> bool:
        """Had the gradient norm left its median before?"""
        return self.norm_growth >= GROWN

    @property
    def calm(self) -> bool:
        """Was the gradient norm as usual before? False where that is not known."""
        return self.norm_growth < GROWN


def onset(signals: Signals, row: int) -> Onset:
    """What the log shows before a bad row."""
    start = max(0, row - PAST)
    losses = np.flatnonzero(np.isfinite(signals.loss[start:row]))
    norms = signals.norm[start:row]
    norms = norms[np.isfinite(norms)]
    usual = median(norms[:-RECENT])
    growth = float(norms[-RECENT:].max()) / usual if usual > 0 else float("nan")
    lr = signals.lr[max(0, row - 1) : row + 1]
    lr_bad = signals.present("lr")[max(0, row - 1) : row + 1] & ~np.isfinite(lr)
    return Onset(
        row=row,
        last_loss_row=start + int(losses[-1]) if len(losses) else None,
        norm_growth=growth,
        bad_lr=bool(lr_bad.any()),
        applied_before=row > 0 and bool(applied(signals, slice(row - 1, row))[0]),
    )


def applied(signals: Signals, rows: slice) -> BoolArray:
    """Rows whose log says that a non-finite gradient was not skipped."""
    taken = signals.present("skipped")[rows] & ~signals.skipped[rows]
    return np.asarray(signals.norm_bad[rows] & taken, dtype=bool)


def last_value(signals: Signals, found: Onset) -> str:
    """The last finite loss before it, as a clause: ``last finite value 2.41 at 8,217``."""
    if found.last_loss_row is None:
        return "no finite value before it"
    value = number(float(signals.loss[found.last_loss_row]))
    return f"last finite value {value} at {signals.step_at(found.last_loss_row):,}"


def lasts(bad: BoolArray, written: BoolArray, episode: Episode) -> bool:
    """Is nothing good written after the episode's last row?

    Args:
        bad: shape (rows,).
        written: where the signal says anything, shape (rows,).
        episode: an episode of ``bad``.
    """
    after = slice(episode.last + 1, None)
    return not bool((written[after] & ~bad[after]).any())


def breaks_off(signals: Signals, first: int, last: int) -> bool:
    """Does a norm that is far up grow on over several rows, until a row is non-finite?

    Args:
        signals: the run.
        first: row in which it is far up first.
        last: the last such row.
    """
    norm = signals.norm[first : last + 1]
    bad = signals.loss_bad[last + 1 : last + 2] | signals.norm_bad[last + 1 : last + 2]
    if last <= first or not bad.any() or not np.isfinite(norm).all():
        return False
    return bool(norm[-1] == norm.max() and norm.min() >= norm[0] / 2)


def went_on_after(signals: Signals, step: int) -> bool:
    """Was any later step taken with finite numbers?"""
    after = slice(int(np.searchsorted(signals.step, step, side="right")), None)
    bad = signals.loss_bad[after] | signals.norm_bad[after] | signals.skipped[after]
    written = signals.present("loss")[after] | signals.present("grad_l2_pre_clip")[after]
    return bool((written & ~bad).any())


def settled_from(bad: BoolArray, episode: Episode) -> int:
    """The row of an episode from which on every row is bad (or silent)."""
    good = np.flatnonzero(~bad[episode.first : episode.last + 1])
    return episode.first + int(good[-1]) + 1 if len(good) else episode.first


def clips(signals: Signals) -> bool:
    """Does the run clip its gradients, as far as run.json or the norms say?"""
    manifest = signals.run.manifest
    if manifest is not None:
        return manifest.max_norm is not None
    return bool((signals.post_norm < 0.999 * signals.norm).any())


FEW = 4
"""Bad rows that one bad batch accounts for; more of them are a fault that comes again."""


def damage(signals: Signals, episode: Episode, to_end: bool) -> Severity:
    """How bad an episode of non-finite values is.

    A run that never came back is dead. A few bad steps that it survived are a warning; more, or
    more episodes, need action.
    """
    skipped_once = episode.rows == 1 and bool(signals.skipped[episode.first])
    if to_end and not skipped_once:
        return Severity.CRITICAL
    return Severity.WARNING if episode.rows <= FEW and episode.folded == 1 else Severity.ERROR


def stretch(signals: Signals, episode: Episode, bad: BoolArray, to_end: bool) -> str:
    """When an episode was bad, as a clause that follows ``is NaN``.

    Args:
        signals: the run.
        episode: an episode of bad rows.
        bad: where a row is bad or says nothing, shape (rows,).
        to_end: nothing good follows.
    """
    first, last = signals.step_at(episode.first), signals.step_at(episode.last)
    every = episode.rows == episode.last - episode.first + 1
    if to_end and episode.rows > 1:
        settled = signals.step_at(settled_from(bad, episode))
        if settled == first:
            return f"from step {first:,} on"
        return f"first at step {first:,}, and at every step from {settled:,} on"
    if episode.folded > 1:
        count = signals.told_rows(episode.rows)
        return f"at {count} from {first:,} to {last:,}, in {episode.folded:,} stretches"
    return f"at {span(first, last)}" if every else f"at {episode.rows:,} of {span(first, last)}"


def diverging(signals: Signals, found: Onset) -> str:
    """The cause where the norm had grown before."""
    end = "past 65,504, the end of fp16" if signals.precision == "fp16" else "until it overflowed"
    return (
        f"The run was diverging: the gradient norm had grown to {factor(found.norm_growth)} its "
        f"median, {end}."
    )


def against_growth(signals: Signals) -> str:
    """What to do about a run that diverged, without advising what it does already."""
    clip = "" if clips(signals) else " and clip the gradients at a few times their median norm"
    more = ""
    if signals.precision == "fp16":
        more = "; bf16 moves the limit but does not stop the growth"
    return (
        f"Resume from before the growth, lower the learning rate or lengthen the warm-up{clip}"
        f"{more}."
    )
