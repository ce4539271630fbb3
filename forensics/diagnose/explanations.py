"""Which finding explains which: the causal knowledge behind the verdict, one line a rule.

A line reads: *root explains consequence, when condition*. Conditions compare steps and look at the
signals; none of them weighs or scores. The first line that matches a pair of findings wins, and
every line is independent of the others, so one can be read, doubted or added alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.signals import Signals

When = Callable[[Signals, Finding, Finding], bool]
"""``(signals, root, consequence) → does the root explain the consequence?``"""

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

LR_REACH = 100
"""Steps after a learning-rate fault in which trouble is its consequence; a wrong rate that does
nothing for 100 updates is not what broke the run."""
POISON_LOG2 = -128.0
"""At a loss scale of 2^-128 its reciprocal is Inf in fp32 and GradScaler itself writes NaN."""

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


def within(before: int, after: int) -> When:
    """The consequence starts at most ``before`` steps before the root and ``after`` after it."""

    def condition(_: Signals, root: Finding, consequence: Finding) -> bool:
        return -before <= consequence.first_step - root.first_step <= after

    return condition


def during(slack: int = 0) -> When:
    """The consequence starts in the root's episode, or up to ``slack`` steps after its end."""

    def condition(_: Signals, root: Finding, consequence: Finding) -> bool:
        return root.first_step <= consequence.first_step <= root.last_step + slack

    return condition


def from_then_on(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The consequence does not start before the root."""
    del signals
    return consequence.first_step >= root.first_step


def at_all(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The two concern the same run; order says nothing (a slow fault is noticed late)."""
    del signals, root, consequence
    return True


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
    fell = signals.scale_log2[rows]
    after = signals.scale_log2[max(rows.start, _rows(signals, root).start) : rows.stop]
    fell, after = fell[np.isfinite(fell)], after[np.isfinite(after)]
    if len(after) == 0 or root.first_step > consequence.last_step:
        return False
    return bool(after[0] - after.min() > (fell[0] - fell.min()) / 2)


def most_of_it_came_after(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """The root starts within the first half of the consequence."""
    del signals
    middle = (consequence.first_step + consequence.last_step) / 2
    return consequence.first_step <= root.first_step <= middle


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
    poisonous = signals.scale_log2[before] <= POISON_LOG2
    return bool((poisonous | (signals.scale[before] == 0)).any())


def at_or_after_spike(signals: Signals, root: Finding, consequence: Finding) -> bool:
    """One to eight steps later: the time Adam's second moment takes to show a spike in the loss."""
    del signals
    return 1 <= consequence.first_step - root.first_step <= 8


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


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        ("broken-log", "resume-seam"),
        (*_GROWTH, "learning-rate-fault", "loss-scale-policy-broken", "nonfinite-loss"),
        both(is_serious, within(2, 2)),
        "it starts at the seam",
    ),
    Explanation(
        ("learning-rate-fault",),
        (*_DAMAGE, *_GROWTH, *_SKIPS, "poisoned-state", "update-ratio", "weight-growth"),
        both(is_serious, within(0, LR_REACH)),
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
        ("loss-divergence",),
        ("gradient-explosion", "gradient-spike", "loss-spike", "loss-plateau", "weight-growth"),
        at_all,
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
        ("gradient-spike",),
        ("loss-spike",),
        at_or_after_spike,
        "the update of the spike is in the weights",
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
        both(skips_are_not_logged, within(0, 2), the_gradient_came_first),
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
        from_then_on,
        "what comes after is no training any more",
    ),
)


def explains(signals: Signals, root: Finding, consequence: Finding) -> int | None:
    """The number of the first line by which one finding explains another, or None."""
    if root.rule == consequence.rule:
        again = root.subject == consequence.subject and root.first_step < consequence.first_step
        return len(EXPLANATIONS) if again else None
    for number, line in enumerate(EXPLANATIONS):
        named = root.rule in line.roots and consequence.rule in line.consequences
        if named and line.when(signals, root, consequence):
            return number
    return None
