"""The loss rises for good.

What it detects
    In the medians of 40 blocks the last three are above the best by 6 standard deviations of a
    block and by 5 %: a rise of more than 25 % that is not falling back, or a smaller one that is
    steady. A noisy loss that climbs slowly from the start and settles, as against the growing
    targets of reinforcement learning, is told as an info; so is one that begins below guessing,
    climbs smoothly and falls from its peak to the end, or is still climbing in the warm-up.
    A loss that jumps, falls part of the way back and then stands at twice its best or more is told
    too. Blow-ups of the last rows, too short for a block, are found row by row. Told is since when
    the loss is above its best, and what the learning rate, norm and scale did before.

Why it matters
    What is learned after the turn is worse than the best checkpoint before it. A rise that keeps
    rising ends in Inf.

Evidence
    The loss at its best, at the turn and at the end.

Silent when
    The loss falls again after its peak (that is a spike), fewer than 12 losses are finite, or the
    log holds rewards: the loss of a policy gradient is no measure, unless it blows up; no more is
    that of one player where run.json says that optimizers step in turn (a GAN). A smaller rise
    that happens between two neighbouring blocks is a new level, an info: a curriculum or other
    data; so is one up to 60 % that falls on from there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.loss_course import LATEST, Course, course
from forensics.diagnose.loss_rise import LEAST, RISE, Rise, find_rise
from forensics.diagnose.low_start import may_fill_up, starts_low
from forensics.diagnose.moving_target import follows_its_target
from forensics.diagnose.optimizer_facts import climbs_the_loss
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import Phase, rate_state
from forensics.diagnose.series import median, theil_sen
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import norm_spiked
from forensics.diagnose.wording import factor, number, percent, power_of_two
from forensics.frozen import dataclass
from forensics.runlog.steps import IntArray


@dataclass(frozen=True)
class Thresholds:
    """How far a loss must rise, and when a rise is a new level."""

    sigmas: float = threshold(RISE[0], "0 of 720 healthy simulated runs, nine kinds of training")
    share: float = threshold(RISE[1], "wander of the block medians of healthy fine-tuning")
    large: float = threshold(0.25, "+0.6 nat at a loss of 2.4; curricula stay below it")
    level: float = threshold(0.6, "data can be harder by half; no data make a loss rise further")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    del thresholds
    if why := no_measure(signals):
        return why
    return f"too few losses ({LEAST} needed)" if len(course(signals).loss) < LEAST else ""


@rule(thresholds=Thresholds, needs=("loss",), too_little=_too_little)
def loss_divergence(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding: the rise at the end of the run."""
    rise = signals.derived(find_rise, thresholds.sigmas, thresholds.share)
    if rise is None or rise.falling or no_measure(signals):
        return
    path = course(signals)
    if rise.final or rise.share > thresholds.large:
        shift = rise.sudden and rise.share < thresholds.level and _learns_on(path, rise)
        shift = shift and not norm_spiked(signals, np.array([rise.first]))[0]
        severity = Severity.INFO if shift else Severity.ERROR
    else:
        shift = rise.sudden
        severity = Severity.INFO if shift else Severity.WARNING
        if not shift and not rise.steady:
            return
    known = _known_shape(signals, path, rise) if not shift else None
    best = int(path.rows[int(path.bounds[path.best + 1]) - 1])
    around = [best, rise.first - 1, rise.first, rise.first + 1, int(path.rows[-1])]
    yield Finding(
        rule="loss-divergence",
        severity=Severity.INFO if known else severity,
        message=_message(signals, path, rise, shift),
        first_step=signals.step_at(rise.first),
        last_step=signals.last_step,
        evidence=(
            signals.evidence("loss", signals.loss, around, rise.level),
            signals.evidence("grad_l2_pre_clip", signals.norm, around),
        ),
        cause=known[0] if known else _cause(signals, rise, shift),
        remedy=known[1] if known else _remedy(signals, rise, shift),
    )


def _known_shape(signals: Signals, path: Course, rise: Rise) -> tuple[str, str] | None:
    """Cause and remedy of a rise whose shape no divergence has; None for any other."""
    if may_fill_up(signals, path, rise):
        return _FILLS_UP, _FILLING
    if rise.final:
        return None
    if follows_its_target(signals, path, rise):
        return _FOLLOWS, _FOLLOWED
    return (_FILLS_UP, _FILLED) if starts_low(path, rise) else None


_FOLLOWS = (
    "A loss measured against targets that grow with what is learned, as a value function's against "
    "its returns, rises and settles like this; so does a model that is slowly getting worse."
)
_FOLLOWED = (
    "Judge by the return or by another measure of what is wanted. If the targets do not change, "
    "resume from before this step with a lower learning rate."
)
_FILLS_UP = (
    "A loss that begins below what guessing costs, as a detector's does before it assigns itself "
    "positives, rises while there is more to count and then falls as that is learned."
)
_FILLING = (
    "Wait for the end of the warm-up: a loss that only fills up turns and falls. If it goes on "
    "rising, start again with a lower peak of the learning rate."
)
_FILLED = (
    "Nothing to do while it falls. If the weights were trained before, they were better before "
    "this step: resume from there with a lower learning rate."
)


def _learns_on(path: Course, rise: Rise) -> bool:
    """Does the loss fall after the jump, by more than its noise?"""
    after = path.medians[np.searchsorted(path.rows[path.bounds[:-1]], rise.first) + 1 :]
    return len(after) >= 4 and theil_sen(after) * len(after) < -3 * path.noise


def _logged(signals: Signals, rows: IntArray, level: float) -> str:
    """The logged loss that is nearest to a level: a median of blocks is in no log."""
    losses = signals.loss[rows]
    return number(float(losses[np.argmin(np.abs(losses - level))]) if len(losses) else level)


def _message(signals: Signals, path: Course, rise: Rise, shift: bool) -> str:
    since = f"{signals.step_at(rise.first):,}"
    latest = path.rows[int(path.bounds[-LATEST - 1]) :]
    low, high = (-9, -2) if rise.final else (max(path.best - 1, 0), path.best + 2)
    start = _logged(signals, path.rows[int(path.bounds[low]) : int(path.bounds[high])], rise.level)
    levels = f"from {start} to {_logged(signals, latest, rise.end)}"
    share = f" (+{percent(rise.share)})" if rise.share < 10 else ""
    if shift:
        return f"the level of the loss stepped up {levels}{share} at step {since}"
    lost = len(signals) - 1 - rise.first
    if rise.stuck:
        since_then = signals.loss[rise.first :]
        top = number(float(since_then[np.isfinite(since_then)].max()))
        return (
            f"the loss rose at step {since} and never came back, {levels}{share} after a peak of "
            f"{top}: nothing in the last {percent(lost / len(signals))} of the run was better than "
            f"before"
        )
    return (
        f"the loss rises for good since step {since}, {levels}{share}: nothing in the last "
        f"{percent(lost / len(signals))} of the run was better than before"
    )


def _lead(signals: Signals, row: int) -> list[str]:
    """What the norm and the scale had done before the turn, in clauses."""
    clauses = []
    before = median(signals.norm[max(0, row - 50) : row])
    usual = median(signals.norm[max(0, row - 1000) : max(0, row - 50)])
    if usual > 0 and before > 2 * usual:
        clauses.append(f"the gradient norm had grown {factor(before / usual)}")
    scale = signals.scale[max(0, row - 200) : row]
    scale = scale[np.isfinite(scale) & (scale > 0)]
    if len(scale) and scale[-1] < scale[0]:
        fell = f"{power_of_two(float(scale[0]))} to {power_of_two(float(scale[-1]))}"
        clauses.append(f"the loss scale had fallen from {fell}")
    return clauses


def _cause(signals: Signals, rise: Rise, shift: bool) -> str:
    if climbs_the_loss(signals):
        return "The optimizer was made with maximize=True: it climbs the loss, as run.json says."
    if shift:
        return "Other data or another mixture from here on is the usual reason (a curriculum)."
    state = rate_state(signals, rise.first)
    lead = [text for text in (state.text, *_lead(signals, rise.first)) if text]
    told = f" At the turn {' and '.join(lead)}." if lead else ""
    if state.phase in (Phase.AT_PEAK, Phase.JUMPED, Phase.WARMING_UP) or rise.first < 20:
        told = told.replace("was calm", "was constant")
        return f"The learning rate is too high for these weights.{told}"
    if rise.stuck and _at_once(signals, rise):
        return (
            f"It rose from one step to the next, so what came in there is behind it: that batch, "
            f"the data or labels from there on, or a setting.{told}"
        )
    return (
        f"Late divergence: a schedule that stays too high, statistics that drift (BatchNorm, an "
        f"EMA that follows too slowly), or weights that have grown.{told}"
    )


def _at_once(signals: Signals, rise: Rise) -> bool:
    """Did the loss go from below half the rise to above its end from one row to the next?"""
    half = rise.level + 0.5 * (rise.end - rise.level)
    before, now = signals.loss[rise.first - 1 : rise.first + 1].tolist() if rise.first else (0, 0)
    return bool(before < half and now > rise.end)


def _remedy(signals: Signals, rise: Rise, shift: bool) -> str:
    at = f"{signals.step_at(rise.first):,}"
    if climbs_the_loss(signals):
        return "Make the optimizer without maximize=True, or give it the negative of the loss."
    if shift:
        return f"Nothing to do if the data change at step {at}; else look there."
    state = rate_state(signals, rise.first)
    if state.phase is Phase.JUMPED:
        return f"Mend the schedule and resume from a checkpoint before step {at}."
    if rise.first < 20:
        return "Start again with a learning rate that is several times lower, or a warm-up."
    if state.phase in (Phase.AT_PEAK, Phase.WARMING_UP):
        return f"Resume from before step {at} with a lower peak or a longer warm-up."
    if rise.stuck and _at_once(signals, rise):
        return (
            f"Inspect the batch of step {at}, and what changed there (data, labels, settings); "
            f"resume from before it without that batch. If the loss rises again, the data from "
            f"there on are to blame."
        )
    return (
        f"Resume from before step {at} with a lower learning rate; if it turns again at the same "
        f"step, the data there are to blame."
    )
