"""The learning rate is not one: NaN, negative, zero for long, jumped, or out of step.

What it detects
    A learning rate that is written as NaN or Inf, or is negative; 0 in all groups for at least 20
    rows of training; at least 3 times the highest so far from one row to the next; a schedule
    that moves on skipped steps; and a schedule that run.json names but that never moves.

Why it matters
    The learning rate multiplies every update: NaN goes into all weights at once, 0 wastes the
    time, a jump throws the weights out of their valley.

Evidence
    The learning rate around the fault.

Silent when
    It is 0 at the very start (warm-up) or the very end, restarts to a value it had before, steps
    down, or is printed with so few digits that a small rate reads as 0. A jump is an info where
    nothing worse follows it and the rate was constant before (a constant warm-up). A schedule
    that moves on skipped steps is an info while skips stay below 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rate_history import moving_skips, zero_stretches
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import JUMP, jumps, warmup_rows
from forensics.diagnose.series import Episode, median, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, percent, span, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

STANDING = ("constant", "step", "plateau")
"""Words in the names of schedules whose rate stands still for long."""


@dataclass(frozen=True)
class Thresholds:
    """When a learning rate is at fault."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    zeros: int = threshold(20, "rows; schedules touch 0 at their first and last step only")
    jump: float = threshold(JUMP, "times the highest rate before; no schedule goes there in a step")
    blatant: float = threshold(10.0, "times the highest rate before: beyond any stepped warm-up")
    settled: int = threshold(20, "rows without a rise before a jump; a warm-up rises in each")
    constant: int = threshold(2000, "rows; a warm-up at a constant rate is no longer than this")
    skips: float = threshold(0.01, "share of steps by which a schedule may run ahead")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("lr",))
def learning_rate_fault(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of each kind of fault."""
    yield from _nonfinite(signals, thresholds)
    yield from _negative(signals, thresholds)
    yield from _zero(signals, thresholds)
    yield from _jumped(signals, thresholds)
    yield from _moves_on_skips(signals, thresholds)
    yield from _never_moves(signals)


def _finding(
    signals: Signals,
    rows: tuple[int, int],
    severity: Severity,
    message: str,
    cause: str,
    remedy: str,
    rate: FloatArray | None = None,
) -> Finding:
    first, last = rows
    rate = signals.lr if rate is None else rate
    around = [first - 2, first - 1, first, first + 1, (first + last) // 2, last, last + 1]
    return Finding(
        rule="learning-rate-fault",
        severity=severity,
        message=message,
        first_step=signals.step_at(first),
        last_step=signals.step_at(last),
        evidence=(
            signals.evidence("lr", rate, around),
            signals.evidence("loss", signals.loss, around),
        ),
        cause=cause,
        remedy=remedy,
    )


def _faulty_rates(
    signals: Signals, faulty: Callable[[FloatArray], BoolArray], gap: int
) -> Iterator[tuple[str, FloatArray, Episode]]:
    """Episodes of each group's rate, the first group's first; a row is told once."""
    told = np.zeros(len(signals), dtype=bool)
    for name in ("lr", *(column for column in signals.table if column.startswith("lr_"))):
        rate = signals.column(name)
        bad = signals.present(name) & faulty(rate) & ~told
        told |= bad
        whose = "" if name == "lr" else f" of group {name.removeprefix('lr_')}"
        for episode in told_episodes(np.flatnonzero(bad), gap):
            yield whose, rate, episode


def _nonfinite(signals: Signals, limits: Thresholds) -> Iterator[Finding]:
    for whose, rate, episode in _faulty_rates(signals, lambda r: ~np.isfinite(r), limits.gap):
        value = number(float(rate[episode.first]))
        where = span(signals.step_at(episode.first), signals.step_at(episode.last))
        yield _finding(
            signals,
            (episode.first, episode.last),
            Severity.CRITICAL,
            f"the learning rate{whose} is {value} in {where}: every weight it updates becomes "
            "non-finite",
            "A schedule that divides by 0 or takes a root of a negative number: a warm-up of 0 "
            "steps, a total of 0 steps, or a step beyond the last.",
            f"Mend the schedule and resume from a checkpoint before step "
            f"{signals.step_at(episode.first):,}.",
            rate,
        )


def _negative(signals: Signals, limits: Thresholds) -> Iterator[Finding]:
    for whose, rate, episode in _faulty_rates(signals, lambda r: r < 0, limits.gap):
        where = span(signals.step_at(episode.first), signals.step_at(episode.last))
        value = number(float(rate[episode.first]))
        yield _finding(
            signals,
            (episode.first, episode.last),
            Severity.ERROR,
            f"the learning rate{whose} is negative in {where} ({value} first): the loss is climbed",
            "A schedule that runs on after its last step (linear decay does so), or a sign error.",
            f"Hold the schedule at its floor, and resume from before step "
            f"{signals.step_at(episode.first):,}.",
            rate,
        )


def _zero(signals: Signals, limits: Thresholds) -> Iterator[Finding]:
    for first, last in zero_stretches(signals, limits.zeros, limits.told):
        yield _zero_finding(signals, first, last)


def _zero_finding(signals: Signals, first: int, last: int) -> Finding:
    to_end = last == len(signals) - 1
    share = percent((last - first + 1) / len(signals))
    start = signals.step_at(first)
    if first == 0 and to_end:
        text, cause = "the learning rate is 0 throughout: nothing was learned", "It was never set."
    elif to_end:
        text = f"the learning rate is 0 from step {start:,} on: the last {share} of the run learned"
        text += " nothing"
        cause = "The schedule ended before the training did: its total of steps is too small."
    else:
        where = span(start, signals.step_at(last))
        text = f"the learning rate is 0 in {where}: nothing was learned there"
        cause = "A schedule that starts late, restarts wrongly, or counts other steps than these."
    return _finding(
        signals,
        (first, last),
        Severity.ERROR if first == 0 and to_end else Severity.WARNING,
        text,
        f"{cause} With gradient accumulation or several devices a scheduler that is stepped a "
        "different number of times is the usual reason.",
        f"Check the schedule's total and its warm-up against the number of optimizer steps; train "
        f"again from step {start:,}.",
    )


def _jumped(signals: Signals, limits: Thresholds) -> Iterator[Finding]:
    if len(jumps(signals)) == 0:
        return
    rows = np.flatnonzero(np.isfinite(signals.lr) & (signals.lr > 0))
    rate = signals.lr[rows]
    highest = np.maximum.accumulate(rate)
    found = 1 + np.flatnonzero(rate[1:] >= limits.jump * highest[:-1])
    warm = warmup_rows(signals)
    told = 0
    for i in found[found >= limits.settled].tolist():
        settled = bool((np.diff(rate[i - limits.settled : i]) <= 1e-6 * rate[i - 1]).all())
        if not settled or rows[i] <= warm or told == limits.told:
            continue
        stays = i + 1 < len(rate) and rate[i + 1] >= 0.5 * rate[i]
        if not stays and not _harm_after(signals, int(rows[i])):
            continue  # one row that harms nothing is a bad cell
        told += 1
        yield _jump_finding(signals, rows, i, float(rate[i] / highest[i - 1]), limits)


def _jump_finding(
    signals: Signals, rows: IntArray, i: int, ratio: float, limits: Thresholds
) -> Finding:
    row, rate = int(rows[i]), signals.lr[rows]
    flat = bool(np.ptp(rate[:i]) <= 1e-6 * rate[i - 1])
    harm = _harm_after(signals, row)
    innocent = not harm and (ratio < limits.blatant or (flat and row < limits.constant))
    up = np.flatnonzero(rate[i:] < 0.5 * rate[i])
    last = int(rows[i + up[0] - 1]) if len(up) else int(rows[-1])
    step = signals.step_at(row)
    after = f"; {harm}" if harm else ""
    values = f"from {number(float(rate[i - 1]))} to {number(float(rate[i]))}"
    how = f"at step {step:,}, {values}, {factor(ratio)} the highest before"
    if np.isclose(rate[i], ratio * rate[i - 1]):
        how = f"{factor(ratio)} at step {step:,}, {values}"
    return _finding(
        signals,
        (row, last),
        Severity.INFO if innocent else (Severity.ERROR if harm else Severity.WARNING),
        f"the learning rate jumped {how}{after}",
        "A changed setting, a resume without the scheduler's state, or a schedule in other units "
        "than the optimizer's steps.",
        f"Check what changed at step {step:,}; resume from before it at the old rate."
        if not innocent
        else f"Nothing to do if it is meant (a warm-up at a constant rate); else look at {step:,}.",
    )


def _harm_after(signals: Signals, row: int) -> str:
    """What became worse in the 100 rows after, as a clause; empty where nothing did."""
    after = slice(row, row + 100)
    bad = np.flatnonzero((signals.loss_bad | signals.norm_bad)[after])
    for name, values in (("loss", signals.loss), ("gradient norm", signals.norm)):
        before = median(values[max(0, row - 100) : row])
        worst = values[row + 1 : row + 100]
        worst = worst[np.isfinite(worst)]
        if before > 0 and len(worst) >= 5:
            high = float(np.sort(worst)[-max(2, len(worst) // 10)])
            if high > (1.5 if name == "loss" else 5.0) * before:
                top = number(float(worst.max()))
                return (
                    f"the {name} rose to {top} within 100 rows, from a median of {number(before)}"
                )
    if len(bad) > 2:
        return f"loss or norm is non-finite {steps(int(bad[0]))} later"
    return ""


def _moves_on_skips(signals: Signals, limits: Thresholds) -> Iterator[Finding]:
    first, last = moving_skips(signals)
    if len(first):
        yield _skip_finding(signals, first, last, limits)


def _skip_finding(signals: Signals, first: IntArray, last: IntArray, limits: Thresholds) -> Finding:
    share = len(signals.scaling.counted) / len(signals)
    ahead = int((last - first + 1).sum())
    return _finding(
        signals,
        (int(first[0]), int(last[-1])),
        Severity.WARNING if share >= limits.skips else Severity.INFO,
        f"the schedule moves on skipped steps: it ran {steps(ahead)} ahead of the optimizer "
        f"between steps {signals.step_at(int(first[0])):,} and {signals.step_at(int(last[-1])):,} "
        f"({percent(share)} of the steps after calibration were skipped)",
        "scheduler.step() is called whether or not the scaler let the optimizer step.",
        "Call scheduler.step() only when the scale has not fallen in scaler.update(), that is when "
        "the optimizer stepped.",
    )


def _never_moves(signals: Signals) -> Iterator[Finding]:
    manifest = signals.run.manifest
    name = "" if manifest is None else str(manifest.schedule.get("name", ""))
    warm = 0 if manifest is None else int(manifest.schedule.get("warmup_steps") or 0)
    flat = manifest is not None and manifest.schedule.get("min_lr_ratio") == 1
    stands = not name or any(word in name.lower() for word in STANDING)
    moving = not (stands or flat) or warm > 1
    if not moving:
        return
    # A scheduler rightly stands still on skipped steps.
    rate = signals.lr[np.isfinite(signals.lr) & ~signals.skipped]
    if len(rate) < max(100, warm // 4) or np.ptp(rate) > 0 or rate[0] == 0:
        return
    yield _finding(
        signals,
        (0, len(signals) - 1),
        Severity.WARNING,
        f"run.json names the schedule {name or 'constant with a warm-up'}, but the learning rate "
        f"is {number(float(rate[0]))} in all {steps(len(signals))}",
        "scheduler.step() is never called, or steps another optimizer.",
        "Call scheduler.step() once after each optimizer step that was taken.",
    )
