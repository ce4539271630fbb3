"""What the log cannot tell, and what would decide it."""

from __future__ import annotations

import shlex

import numpy as np

from forensics.diagnose.cut_graph import cut_so_far
from forensics.diagnose.endless_fall import endless_fall
from forensics.diagnose.finding import Finding
from forensics.diagnose.masked_losses import loss_is_filtered, what_shows_it
from forensics.diagnose.next_command import (
    asks_for_a_recipe,
    has_state_before,
    trains_from_the_start,
)
from forensics.diagnose.noiseless_fall import noiseless_fall
from forensics.diagnose.onset import breaks_off
from forensics.diagnose.optimizer_facts import divides_by_its_size
from forensics.diagnose.other_losses import bad_to_the_end
from forensics.diagnose.ranks import unheard_ranks
from forensics.diagnose.reward_driven import no_measure, one_of_several
from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals
from forensics.diagnose.thrown_off import thrown_off
from forensics.diagnose.wording import number
from forensics.diagnose.zero_loss import at_zero_for_good
from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.schema import spec_of

CALM = 3.0
"""A norm within this factor of its median says that nothing grew before (as in the lead-up)."""
PAST = 100
"""Rows before the first bad step that are compared with it."""
_NONFINITE = (
    "nonfinite-loss",
    "nonfinite-gradient",
    "nonfinite-parameter",
    "nonfinite-step-applied",
)
MOST_NAMED = 6
"""Columns that are named where none of them is the loss."""
NEAR = 20
"""Rows whose median is the loss just before a spike."""
LEAST_FLAT, ENOUGH, FLAT = 20, 100, 0.012
"""Losses from which a flat course is worth a word and from which loss-plateau judges it, and the
share of its start within which a loss is flat there."""
BACK = 0.1
"""Share of a spike's height below which the loss is back where it was."""


def open_questions(
    signals: Signals, root: Finding, findings: tuple[Finding, ...]
) -> tuple[str, ...]:
    """The questions that remain about this root, each with what would decide it."""
    row = int(np.searchsorted(signals.step, root.first_step))
    rules = {f.rule for f in findings if f.first_step == root.first_step}
    questions = []
    alone = unheard_ranks(signals, row) if root.rule in _NONFINITE and row < len(signals) else ""
    begins_bad = ("nonfinite-loss", "nonfinite-gradient", "nonfinite-parameter")
    if row == 0 and len(signals) and root.rule in begins_bad:  # snapshots may be all that is left
        questions.append(_from_the_start(signals))
    elif root.rule == "nonfinite-loss" and _calm(signals, row):
        questions.append(_loss_question(signals, root))
    if (
        root.rule in ("nonfinite-gradient", "nonfinite-step-applied")
        and not signals.loss_bad[row : row + 1].any()
    ):
        questions.append(alone or _norm_question(signals))
    elif alone:
        questions.append(alone)
    jumped = {"loss-spike", "gradient-spike"} <= rules
    if jumped and not (_was_the_batch(signals, row) or _breaks_off(signals, root)):
        other = (
            "a stale second moment in Adam"
            if divides_by_its_size(signals) is not False
            else "the update before it"
        )
        questions.append(
            f"Loss and norm jumped in the same step: a hard batch or {other}. "
            + _sentence(_replay(signals, root, "a replay without that batch"))
            + " decides."
        )
    if root.rule == "loss-plateau" and signals.derived(thrown_off) is None:
        questions.append(
            "A flat loss has many causes. Overfitting one batch decides whether the model can "
            "learn at all."
        )
    if root.rule == "masked-nonfinite":
        questions.append(
            "The logger hides the bad values. Logging the raw loss of every step shows the first."
            if signals.has("grad_l2_pre_clip")
            else "A hidden NaN or batches without labels: the raw loss of every step and the "
            "gradient norm tell them apart."
        )
    if asked := asks_for_a_recipe(signals, root):
        questions.append(asked)
    return tuple(questions)


def _replay(signals: Signals, root: Finding, otherwise: str) -> str:
    """The replay that decides: the verb that makes it where the run kept checkpoints."""
    if has_state_before(signals, root):
        return "`forensics bisect`, which leaves samples out,"
    if trains_from_the_start(signals, root):
        return "`forensics bisect`, which trains again from step 0 and leaves samples out,"
    return otherwise


def _from_the_start(signals: Signals) -> str:
    earliest, step = signals.table.first_of(0), signals.step_at(0)
    if earliest < step:
        return (
            f"The first row is bad already, and covers steps {earliest:,} to {step:,}: a batch "
            "among them, the initial weights or what came before this log. Logging every step "
            "tells which step it was."
        )
    return (
        "The first logged step is bad already: the initial weights, the first batch or what "
        "came before this log. Look at the initial weights, then feed another batch."
    )


def _loss_question(signals: Signals, root: Finding) -> str:
    replay = _replay(signals, root, "a replay of the step without some of its samples")
    if root.last_step < signals.last_step:  # sound steps after it: the weights were
        return f"Which sample or which operator it was: {replay} tells."
    return f"A bad batch or bad weights: {replay} tells them apart."


def _norm_question(signals: Signals) -> str:
    if one_of_several(signals):
        return (
            "Which micro-batch it was, and whether its loss was NaN already: backward ran several "
            "times a step, and the log holds one loss. `recorder.add_loss(loss)` beside each "
            "backward records them all."
        )
    if loss_is_filtered(signals):
        return what_shows_it(signals)
    if signals.precision == "fp16":
        return (
            "Overflow from the loss scale or a singularity in backward: the log shows the norm "
            "only. The same step in fp32 decides: finite there means overflow."
        )
    return (
        "Which operator of backward made the value: the log shows the norm only. Anomaly mode on "
        "this step names it (division, log, sqrt or where at 0 are the usual ones)."
    )


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _breaks_off(signals: Signals, root: Finding) -> bool:
    """Did the norm of a spike grow on until nothing was finite? That is no batch's doing."""
    first, last = np.searchsorted(signals.step, [root.first_step, root.last_step])
    return root.rule == "gradient-spike" and breaks_off(signals, int(first), int(last))


def _was_the_batch(signals: Signals, row: int) -> bool:
    """Was the loss back in the next two rows? Weights that are off do not mend so fast."""
    level = median(signals.loss[max(0, row - NEAR) : row])
    after = signals.loss[row + 1 : row + 3]
    height = float(signals.loss[row]) - level
    return bool(len(after) and height > 0 and (after - level < BACK * height).all())


def _calm(signals: Signals, row: int) -> bool:
    past = signals.norm[max(0, row - PAST) : row]
    finite = past[np.isfinite(past)]
    if len(finite) < 3:
        return False
    usual = median(finite)
    return bool(usual > 0 and finite[-3:].max() < CALM * usual)


def not_judged(signals: Signals) -> tuple[str, ...]:
    """What a log without these columns cannot be judged for."""
    gaps = []
    if not signals.has("loss"):
        gaps.append(
            "No loss column: spikes, divergence and plateaus could not be judged."
            + _other_columns(signals)
        )
    elif why := no_measure(signals):
        gaps.append(f"{_sentence(why)}: divergence and plateaus of the loss were not judged.")
    if others := bad_to_the_end(signals):
        gaps.append(
            f"{others}: what is trained by it learns nothing; the main loss alone is judged."
        )
    if not signals.has("grad_l2_pre_clip"):
        gaps.append("No gradient norms: explosion, vanishing and clipping could not be judged.")
    if not signals.skips_known.any() and not signals.has("scaler_scale"):
        gaps.append("Neither skips nor loss scale are logged: the scaler could not be judged.")
    gaps += _perhaps(signals)
    facts = signals.table.facts
    if facts is not None and facts.unit == PER_EPOCH:
        gaps.append("A row is an epoch: what happened within one could not be judged.")
    elif signals.interval > 1:
        gaps.append(
            f"A row covers {signals.interval:,} steps: what happened within them could not be "
            "judged."
        )
    return tuple(gaps)


def _perhaps(signals: Signals) -> list[str]:
    """What may be a fault or meant so: the kind of loss, its data, layers without a gradient."""
    gaps = []
    if signals.derived(endless_fall) is not None:
        gaps.append(
            "The loss falls below 0 without slowing down: sound while a reward or a likelihood is "
            "maximised; a cross-entropy or a squared error cannot be negative, so its sign is "
            "wrong (unbounded-loss)."
        )
    if (row := at_zero_for_good(signals)) is not None and not no_measure(signals):
        gaps.append(
            f"The loss is exactly 0 from step {signals.step_at(row):,} to the end: sound if all "
            "that there is was learned; else batches have no labels, the data are all alike, or "
            "the labels are in the input. One batch, looked at, decides."
        )
    if signals.derived(noiseless_fall) is not None:
        gaps.append(
            "The loss falls without any noise, as if each step saw the same data: sound if the "
            "batch is all there is to learn, else nothing but one batch was (repeated-batch)."
        )
    gaps += _flat_and_short(signals)
    cut = signals.derived(cut_so_far)
    if cut is not None:
        gaps.append(
            f"{_sentence(cut.told)}: whether they ever get one, snapshots every few steps show "
            f"(frozen-parameter)."
        )
    return gaps


def _flat_and_short(signals: Signals) -> list[str]:
    """A loss that ends where it began, in too few rows for loss-plateau to judge it."""
    loss = signals.finite_loss.values
    fifth = len(loss) // 5
    if not LEAST_FLAT <= len(loss) < ENOUGH or no_measure(signals):
        return []
    start, end = median(loss[:fifth]), median(loss[-fifth:])
    if start <= 0 or abs(end - start) > FLAT * start:
        return []
    return [
        f"The loss is {number(end)} at the end and was {number(start)} at the start: {len(loss)} "
        f"losses are too few to tell a run that learns nothing from a slow start ({ENOUGH} needed)."
    ]


def _other_columns(signals: Signals) -> str:
    """Which columns mean nothing to a rule, and how to say that one is the loss."""
    others = [name for name in signals.table if spec_of(name) is None]
    if not others:
        return ""
    from forensics.runlog.scanner.loss_like import suggested_loss

    named = ", ".join(others[:MOST_NAMED]) + ", …" * (len(others) > MOST_NAMED)
    likely = suggested_loss(others)
    if likely is None:
        return f" Columns not read: {named}; `--map loss=NAME` says which is the loss."
    option = shlex.quote(f"loss={likely}")
    return f" Columns not read: {named}; if {likely} is the loss, add `--map {option}`."
