"""Which finding explains which: the causal knowledge behind the verdict, one line a rule.

A line reads: *root explains consequence, when condition*. Conditions compare steps and look at the
signals; none of them weighs or scores. The first line that matches a pair of findings wins, and
every line is independent of the others, so one can be read, doubted or added alone.
"""

from __future__ import annotations

from forensics.diagnose.clipping import starves
from forensics.diagnose.conditions import (
    LR_REACH,
    ONSET_ERROR,
    When,
    about_evaluation,
    about_training,
    at_all,
    at_the_seam,
    both,
    does_not_recover,
    during,
    explodes_at_once,
    from_then_on,
    in_fp16,
    is_poisonous,
    is_serious,
    it_breaks_off,
    left_nothing,
    loss_stays_finite,
    most_octaves_fell_after,
    most_of_it_came_after,
    next_thing_logged,
    no_gradient_is_left,
    not_before_the_loss,
    same_module,
    scale_was_written,
    skipped_for_the_loss,
    skips_are_not_logged,
    still_bad_at_scale_one,
    the_clip_starves,
    the_first_updates_did_it,
    the_gradient_came_first,
    the_loss_rose_first,
    the_spike_did_it,
    weight_itself_is_bad,
    within,
)
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.lost_rows import tells_lost_rows
from forensics.diagnose.optimizer_facts import never_stepped
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass

NEVER_ROOTS = frozenset(
    {
        "masked-nonfinite",
        "dead-run",
        "high-skip-rate",
        "clipping-every-step",
        "clipping-frequent",
        "instability-at-warmup-end",
        "dominant-parameter",
    }
)
"""Symptoms: something else is behind each of them, even where the log does not show what."""


def may_be_root(signals: Signals, finding: Finding) -> bool:
    """Can a story begin with this finding?

    Of symptoms only with a clip that starves the run, and with an optimizer that never stepped;
    never with rows that the disk did not take.
    """
    if finding.rule == "dead-run" and never_stepped(signals):
        return True
    if finding.rule == "clipping-every-step" and finding.severity >= Severity.WARNING:
        return starves(signals)
    return finding.rule not in NEVER_ROOTS and not tells_lost_rows(finding)


_SKIPS = ("high-skip-rate", "dead-run", "loss-scale-collapse", "loss-scale-oscillation")
_NONFINITE = ("nonfinite-loss", "nonfinite-gradient", "nonfinite-parameter", "norm-overflow")
_DAMAGE = (*_NONFINITE, "nonfinite-step-applied", "dead-run", "masked-nonfinite")
_GROWTH = ("gradient-explosion", "loss-divergence", "gradient-spike", "loss-spike")
_STALL = ("gradient-vanishing", "loss-plateau", "loss-scale-runaway")
_CLIPPING = ("clipping-every-step", "clipping-frequent", "clipping-ineffective")


@dataclass(frozen=True)
class Explanation:
    """One line of the table: any of ``roots`` explains any of ``consequences`` when ``when``."""

    roots: tuple[str, ...]
    consequences: tuple[str, ...]
    when: When
    because: str


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        ("broken-log", "resume-seam"),
        (*_GROWTH, "learning-rate-fault", "loss-scale-policy-broken", "nonfinite-loss"),
        both(is_serious, at_the_seam),
        "it starts at the seam",
    ),
    Explanation(
        ("loss-scale-collapse",),
        (*_DAMAGE, *_SKIPS, "loss-scale-policy-broken", "poisoned-state"),
        both(scale_was_written, from_then_on),
        "the scale that was written makes every gradient 0 or NaN",
    ),
    Explanation(
        ("gradient-vanishing",),
        ("loss-divergence", "loss-spike", "loss-plateau"),
        both(is_serious, no_gradient_is_left, within(2, 1 << 62)),
        "without any gradient the loss stays where that step left it",
    ),
    Explanation(
        ("learning-rate-fault",),
        (*_DAMAGE, *_GROWTH, *_SKIPS, "poisoned-state", "update-ratio", "weight-growth"),
        both(is_serious, within(ONSET_ERROR, LR_REACH)),
        "the update uses the learning rate",
    ),
    Explanation(
        ("learning-rate-fault",),
        (*_STALL, "frozen-parameter", "update-ratio"),
        both(is_serious, at_all),
        "without a learning rate nothing moves",
    ),
    Explanation(
        ("rank-divergence",),
        (*_DAMAGE, *_SKIPS),
        both(is_serious, within(0, 1)),
        "the reduction spreads one rank's values to all",
    ),
    Explanation(
        ("recurring-sample",),
        (*_DAMAGE, *_SKIPS, "loss-spike", "gradient-spike"),
        both(is_serious, within(0, 1)),
        "the same data comes round",
    ),
    Explanation(
        ("poisoned-state",),
        (*_DAMAGE, *_GROWTH),
        both(about_training, within(0, 2)),
        "the next update uses the poisoned moments",
    ),
    Explanation(
        ("poisoned-state",),
        ("nonfinite-validation",),
        both(about_evaluation, from_then_on),
        "evaluation uses the poisoned statistics",
    ),
    Explanation(
        ("nonfinite-parameter",),
        (*_DAMAGE, *_SKIPS, "nonfinite-validation", "poisoned-state"),
        both(weight_itself_is_bad, from_then_on),
        "the forward pass uses the bad weight",
    ),
    Explanation(
        ("activation-overflow-risk", "weight-growth"),
        (*_DAMAGE, *_SKIPS),
        both(is_serious, in_fp16, same_module, from_then_on),
        "what grows overflows at 65,504 in fp16",
    ),
    Explanation(
        ("unbounded-loss",),
        (*_DAMAGE, *_SKIPS, *_GROWTH, *_CLIPPING, "weight-growth", "update-ratio"),
        is_serious,
        "a loss without a lowest value drives norm and weights up for ever",
    ),
    Explanation(
        ("loss-plateau",),
        (*_GROWTH, *_CLIPPING, "frozen-parameter", "gradient-vanishing", "weight-growth"),
        both(is_serious, the_first_updates_did_it),
        "the first updates undid the start",
    ),
    Explanation(
        ("depth-growth",),
        (*_DAMAGE, *_GROWTH, "activation-overflow-risk", *_CLIPPING),
        is_serious,
        "signals grow with depth from the first step",
    ),
    Explanation(
        ("gradient-explosion",),
        (*_DAMAGE, *_SKIPS, "loss-divergence", "loss-spike", "weight-growth"),
        not_before_the_loss,
        "the norm grew first",
    ),
    Explanation(
        ("gradient-explosion",),
        ("loss-divergence", "loss-spike", "gradient-spike", "weight-growth"),
        both(explodes_at_once, within(4, 1 << 62)),
        "both set in together, and the growth of the norm says how fast",
    ),
    Explanation(
        ("gradient-spike",),
        ("loss-spike", "loss-divergence"),
        the_spike_did_it,
        "the update of the spike is in the weights",
    ),
    Explanation(
        ("gradient-spike",),
        (*_DAMAGE, "loss-spike"),
        it_breaks_off,
        "the norm grew until it overflowed",
    ),
    Explanation(
        ("loss-divergence",),
        ("gradient-explosion", "gradient-spike", "loss-spike", "loss-plateau", "weight-growth"),
        the_loss_rose_first,
        "the loss rose first",
    ),
    Explanation(
        ("loss-divergence", "loss-oscillation"),
        (*_DAMAGE, *_SKIPS),
        from_then_on,
        "the loss had left its course before",
    ),
    Explanation(
        ("gradient-explosion",),
        ("gradient-spike", "update-ratio"),
        within(LR_REACH, 1 << 62),
        "a spike of the same growth",
    ),
    Explanation(
        ("stale-second-moment",),
        ("loss-spike", "gradient-spike"),
        within(0, 8),
        "Adam's second moment lags behind the gradients",
    ),
    Explanation(
        ("loss-spike",),
        ("gradient-spike",),
        within(0, 0),
        "the same batch",
    ),
    Explanation(
        ("loss-spike", "gradient-spike"),
        ("loss-divergence", "gradient-explosion", "loss-plateau", "gradient-vanishing"),
        both(is_serious, within(2, LR_REACH)),
        "the run did not come back from the spike",
    ),
    Explanation(
        ("nonfinite-gradient",),
        ("nonfinite-loss", "dead-run", "nonfinite-validation"),
        both(skips_are_not_logged, next_thing_logged, the_gradient_came_first),
        "the gradient went into the weights",
    ),
    Explanation(
        ("nonfinite-loss",),
        ("nonfinite-step-applied", "nonfinite-gradient", "clip-contamination"),
        from_then_on,
        "backward of a non-finite loss",
    ),
    Explanation(
        ("nonfinite-step-applied",),
        (*_DAMAGE, *_SKIPS, "clip-contamination", "poisoned-state", "nonfinite-validation"),
        from_then_on,
        "a non-finite gradient went into the weights",
    ),
    Explanation(
        ("nonfinite-loss",),
        (*_DAMAGE, *_SKIPS, "poisoned-state", "nonfinite-validation", "loss-scale-policy-broken"),
        within(1, 1 << 62),
        "every step of a non-finite loss is lost",
    ),
    Explanation(
        ("nonfinite-loss",),
        ("loss-scale-frozen",),
        both(skipped_for_the_loss, within(1, 1 << 62)),
        "a loop that skips before backward leaves the scaler as it is",
    ),
    Explanation(
        ("nonfinite-loss",),
        ("loss-scale-collapse",),
        most_octaves_fell_after,
        "every step of a non-finite loss is skipped, and every skip halves the scale",
    ),
    Explanation(
        ("nonfinite-loss",),
        ("high-skip-rate", "dead-run"),
        most_of_it_came_after,
        "every step of a non-finite loss is skipped",
    ),
    Explanation(
        ("nonfinite-gradient",),
        (*_SKIPS, "loss-scale-policy-broken"),
        both(still_bad_at_scale_one, within(1, 1 << 62)),
        "still bad at scale 1, so no scale can help",
    ),
    Explanation(
        ("nonfinite-gradient",),
        ("nonfinite-parameter", "clip-contamination", "masked-nonfinite", "dominant-parameter"),
        from_then_on,
        "the same gradients",
    ),
    Explanation(
        ("loss-scale-frozen", "loss-scale-policy-broken", "phantom-skip"),
        ("high-skip-rate", "dead-run", "nonfinite-gradient", "nonfinite-parameter"),
        both(loss_stays_finite, at_all),
        "a scale that does not follow the overflows keeps overflowing",
    ),
    Explanation(
        ("loss-scale-frozen",),
        ("loss-scale-policy-broken",),
        at_all,
        "a frozen scale breaks the policy",
    ),
    Explanation(
        ("loss-scale-collapse",),
        (*_DAMAGE, "high-skip-rate"),
        is_poisonous,
        "1/scale is Inf: GradScaler itself writes NaN",
    ),
    Explanation(
        ("loss-scale-collapse", "loss-scale-oscillation"),
        ("high-skip-rate", "dead-run", "nonfinite-gradient", "nonfinite-parameter"),
        both(loss_stays_finite, during()),
        "the skips are the scaler's",
    ),
    Explanation(
        ("loss-scale-collapse",),
        ("gradient-underflow",),
        at_all,
        "a scale this small scales nothing up",
    ),
    Explanation(
        ("precision-mismatch",),
        (*_STALL, "gradient-underflow", "loss-scale-frozen", "loss-scale-policy-broken"),
        at_all,
        "the scale does not fit the precision",
    ),
    Explanation(
        ("frozen-parameter", "gradient-underflow", "depth-decay", "gradient-vanishing"),
        (*_STALL, "update-ratio", "frozen-parameter"),
        is_serious,
        "what gets no gradient learns nothing",
    ),
    Explanation(
        ("clipping-every-step",),
        ("loss-plateau",),
        both(is_serious, the_clip_starves),
        "the clip leaves next to nothing of each update",
    ),
    Explanation(
        ("double-unscale",),
        ("clipping-ineffective", "frozen-parameter", "update-ratio", *_STALL),
        at_all,
        "the update is smaller by the loss scale than it should be",
    ),
    Explanation(
        ("repeated-update",),
        ("clipping-ineffective", "update-ratio", *_GROWTH),
        from_then_on,
        "every update is applied more than once",
    ),
    Explanation(
        ("loop-order",),
        (*_DAMAGE, *_GROWTH, *_CLIPPING, "clip-before-unscale", "high-skip-rate", "loss-plateau"),
        both(is_serious, from_then_on),
        "the loop does not do what it was written for",
    ),
    Explanation(
        ("clip-before-unscale",),
        (*_CLIPPING, *_STALL, "update-ratio"),
        at_all,
        "the clip shrinks the unscaled gradient by the loss scale",
    ),
    Explanation(
        ("clipping-ineffective",),
        ("clipping-every-step", "clipping-frequent", *_GROWTH),
        both(is_serious, from_then_on),
        "nothing limits the update",
    ),
    Explanation(
        ("clipping-every-step",),
        ("clipping-frequent",),
        at_all,
        "the same clipping",
    ),
    Explanation(
        ("nonfinite-loss", "nonfinite-gradient", "loss-divergence", "gradient-explosion"),
        ("overfitting", "nonfinite-validation", *_CLIPPING, "instability-at-warmup-end"),
        both(does_not_recover, from_then_on),
        "what comes after is no training any more",
    ),
)


def explains(signals: Signals, root: Finding, consequence: Finding) -> int | None:
    """The number of the first line by which one finding explains another, or None."""
    if root.rule == consequence.rule:
        again = root.subject == consequence.subject and root.first_step < consequence.first_step
        return len(EXPLANATIONS) if again and not left_nothing(signals, root) else None
    for number, line in enumerate(EXPLANATIONS):
        named = root.rule in line.roots and consequence.rule in line.consequences
        if named and line.when(signals, root, consequence):
            return number
    return None
