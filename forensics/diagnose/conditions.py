"""When one finding explains another: conditions on their steps and on the signals between them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forensics.diagnose.clipping import starves
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.onset import breaks_off
from forensics.diagnose.signals import Signals
from forensics.diagnose.thrown_off import thrown_off

FAST_ROWS = 100
"""Rows in which an explosion is over before a loss can be said to have led it."""
FAST_GROWTH = 1000.0
"""Three decades; what a rate a little too high does takes hundreds of steps for it."""
LR_REACH = 100
"""Steps after a learning-rate fault in which trouble is its consequence, and no later."""
ONSET_ERROR = 10
"""Steps by which the onset of a slow growth, read off a fitted line, may come out too early."""
When = Callable[[Signals, Finding, Finding], bool]
"""``(signals, root, consequence) → does the root explain the consequence?``"""

POISON_LOG2 = -128.0
"""At a loss scale of 2^-128 its reciprocal is Inf in fp32 and GradScaler itself writes NaN."""


def within(before: int, after: int) -> When:
    """The consequence starts at most ``before`` steps before the root and ``after`` after it.

    Where a start lies between two snapshots, any step between them will do.
    """

    def condition(_: Signals, root: Finding, consequence: Finding) -> bool:
        latest = consequence.first_step - root.begins
        return -before <= latest and consequence.begins - root.first_step <= after

    return condition


def next_thing_logged(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The consequence starts within two steps of the root, or in the row after it.

    In a log with gaps the next step that is logged may be far.
    """
    if within(0, 2)(signals, root, consequence):
        return True
    row = _rows(signals, root).start
    return bool(signals.step[row + 1 : row + 2] == consequence.first_step)


def during(slack: int = 0) -> When:
    """The consequence starts in the root's episode, or up to ``slack`` steps after its end."""

    def condition(_: Signals, root: Finding, consequence: Finding) -> bool:
        return root.begins <= consequence.first_step <= root.last_step + slack

    return condition


def from_then_on(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The consequence does not start before the root."""
    del signals
    return consequence.first_step >= root.begins


def at_all(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The two concern the same run; order says nothing (a slow fault is noticed late)."""
    del signals, root, consequence
    return True


def the_first_updates_did_it(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The first updates of the run threw it off: what is odd about it came of them."""
    return signals.derived(thrown_off) is not None and consequence.first_step >= root.first_step


def both(*conditions: When) -> When:
    """All of the conditions hold."""
    return lambda signals, root, consequence: all(
        condition(signals, root, consequence) for condition in conditions
    )


def in_fp16(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The run computes in fp16, where finite growth ends at 65,504."""
    del root, consequence
    return signals.precision == "fp16"


def is_serious(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root is more than an observation."""
    del signals, consequence
    return root.severity >= Severity.WARNING


def loss_stays_finite(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """No loss is non-finite from the root's start to its end."""
    del consequence
    return not signals.loss_bad[_rows(signals, root)].any()


def still_bad_at_scale_one(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """Gradients are non-finite even where the loss scale is 1 or less: scaling is not to blame."""
    del consequence
    rows = _rows(signals, root)
    return bool((signals.norm_bad[rows] & (signals.scale[rows] <= 1.0)).any())


def most_octaves_fell_after(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """More than half of the scale's fall came after the root: the halvings before were routine."""
    rows = _rows(signals, consequence)
    fell = signals.scale_log2(rows)
    after = signals.scale_log2(slice(max(rows.start, _rows(signals, root).start), rows.stop))
    fell, after = fell[np.isfinite(fell)], after[np.isfinite(after)]
    if len(after) == 0 or root.first_step > consequence.last_step:
        return False
    return bool(after[0] - after.min() > (fell[0] - fell.min()) / 2)


def most_of_it_came_after(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root starts within the first half of the consequence."""
    del signals
    middle = (consequence.first_step + consequence.last_step) / 2
    return consequence.first_step <= root.first_step <= middle


def at_the_seam(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The consequence starts within two rows of the root; what no smoothing dates, not before."""
    early = 0 if consequence.rule == "nonfinite-loss" else 2
    return within(early, 2)(signals, root, consequence)


def does_not_recover(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """What the root began goes on: most rows until the end are non-finite or skipped.

    A growth of the loss or the norm counts however it ends, and validations use what weights it
    left.
    """
    if not root.rule.startswith("nonfinite") or consequence.rule == "nonfinite-validation":
        return True
    rest = slice(_rows(signals, root).start, None)
    lost = (signals.loss_bad | signals.norm_bad | signals.skipped)[rest]
    return bool(np.count_nonzero(lost) * 2 > len(lost))


def explodes_at_once(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The norm grows a thousandfold within 100 rows: then it is the growth that is to be told."""
    del consequence
    start = _rows(signals, root).start
    norm = signals.norm[start : start + FAST_ROWS]
    known = norm[np.isfinite(norm) & (norm > 0)]
    return len(known) > 1 and bool(known.max() >= FAST_GROWTH * known[0])


def no_gradient_is_left(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """From the root's first step on the gradient norm is exactly 0."""
    del consequence
    norm = signals.norm[_rows(signals, root)]
    known = norm[np.isfinite(norm)]
    return len(known) > 0 and bool(np.mean(known == 0) > 0.9)


def the_clip_starves(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The clip leaves next to nothing of each update, and the optimizer does not make up for it."""
    del root, consequence
    return starves(signals)


def the_gradient_came_first(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The loss of the root's first step was still finite."""
    del consequence
    row = _rows(signals, root).start
    return not signals.loss_bad[row : row + 1].any()


def skips_are_not_logged(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The log does not say whether the step was taken; what follows says that it was."""
    del root, consequence
    return not signals.has("skipped")


def is_poisonous(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The scale is so small that 1/scale is Inf, while the gradients themselves are finite."""
    del root
    row = int(np.searchsorted(signals.step, consequence.first_step))
    before = slice(max(0, row - 2), row + 1)
    poisonous = signals.scale_log2(before) <= POISON_LOG2
    return bool((poisonous | (signals.scale[before] == 0)).any())


def skipped_for_the_loss(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """Every step that was skipped in the consequence had a non-finite loss."""
    del root
    rows = _rows(signals, consequence)
    skipped = signals.skipped[rows]
    return bool(skipped.any()) and bool(signals.loss_bad[rows][skipped].all())


def scale_was_written(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root's fall of the scale was no scaler's work."""
    del consequence
    scaling = signals.scaling
    steps = signals.step[scaling.falls.rows[scaling.written]]
    return bool((steps == root.first_step).any())


def the_spike_did_it(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """One to eight steps later: the time Adam's second moment takes to show a spike in the loss.

    A loss that rises for good needs a spike from which it did not come back.
    """
    del signals
    counts = consequence.rule == "loss-spike" or root.severity >= Severity.WARNING
    return counts and 1 <= consequence.first_step - root.first_step <= 8


def it_breaks_off(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root's norm grows on until a row is non-finite; the consequence starts by that row."""
    rows = _rows(signals, root)
    by_then = signals.step[rows.start : rows.stop + 1]
    meant = rows.stop < len(signals) and root.first_step <= consequence.first_step <= by_then[-1]
    return meant and breaks_off(signals, rows.start, rows.stop - 1)


def the_loss_rose_first(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """No spike comes before what it is to follow; what is slow is noticed late."""
    spike = consequence.rule in ("gradient-spike", "loss-spike")
    return not spike or within(ONSET_ERROR, 1 << 62)(signals, root, consequence)


def left_nothing(signals: Signals, root: Finding) -> bool:
    """Is it a spike of skipped steps? No update was made of it, so a later one is another."""
    if root.rule != "loss-spike":
        return False
    inside = (signals.step >= root.first_step) & (signals.step <= root.last_step)
    return bool(inside.any() and signals.skipped[inside].all())


def not_before_the_loss(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root leads by five steps or more."""
    del signals
    return consequence.first_step - root.first_step >= 5


def about_evaluation(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The poisoned state is used in evaluation only (EMA, BatchNorm statistics)."""
    del signals, consequence
    return any(word in root.subject.lower() for word in ("ema", "running_", "buffer"))


def about_training(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The poisoned state takes part in the update (optimizer moments)."""
    return not about_evaluation(signals, root, consequence)


def weight_itself_is_bad(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The parameter's value is non-finite, not merely the gradient that a bad loss sent it."""
    del signals, consequence
    return any(evidence.signal.startswith("value_nonfinite") for evidence in root.evidence)


def same_module(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """One subject lies within the other, or one of the two is not known."""
    del signals
    a, b = root.subject, consequence.subject
    return not a or not b or a.startswith(b) or b.startswith(a)


def _rows(signals: Signals, finding: Finding) -> slice:
    """The table's rows of a finding's episode."""
    first, last = np.searchsorted(signals.step, [finding.first_step, finding.last_step])
    return slice(int(first), int(last) + 1)
