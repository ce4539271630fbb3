"""One rank is not like the others: its own values go bad first, or its reduced gradient differs.

What it detects
    In the logs of several ranks: steps at which some ranks' own loss or local gradient norm is
    non-finite while the others' are finite, and reduced gradient norms, which all ranks should
    share, that differ by more than 1e-6. One finding an episode and kind.

Why it matters
    The reduction spreads one rank's NaN to all, and rank 0's log then shows a NaN gradient behind
    a healthy loss. Only what was taken before the reduction tells where it came from: the data
    or the hardware of one rank. Where reduced gradients differ, the replicas drift apart.

Evidence
    Loss and norm of the rank named, and rank 0's beside it.

Silent when
    All ranks go bad in the same step, or one overflows in a step that the loss scaler skips as a
    matter of routine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.bad_parameters import born
from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.ranks import (
    SAME,
    RankColumn,
    apart,
    data_position,
    local_norms,
    own_local_norm,
    rank_column,
    reduced_norms,
)
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, spread_out, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """When ranks differ."""

    relative: float = threshold(SAME, "fp32 sums in another order; a shared value is identical")
    rows: int = threshold(3, "rows that differ; one may be a torn or rounded line")
    gap: int = threshold(100, "steps of agreement that end an episode, as in the other rules")


@rule(thresholds=Thresholds, parts=("ranks",))
def rank_divergence(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode in which ranks disagree."""
    if len(signals) == 0:
        return
    yield from _one_sided(signals, thresholds)
    yield from _reduced_apart(signals, thresholds)


def _one_sided(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Steps at which some ranks are bad and others are not."""
    losses, norms = _of_all_ranks(signals)
    bad, seen = losses.bad | norms.bad, losses.present | norms.present
    some = bad.any(axis=0) & (seen & ~bad).any(axis=0)
    some &= ~(~losses.bad.any(axis=0) & signals.scaling.routine)
    for episode in told_episodes(np.flatnonzero(some), thresholds.gap):
        yield _bad_rank(signals, (losses, norms), np.flatnonzero(bad[:, episode.first]), episode)


def _of_all_ranks(signals: Signals) -> tuple[RankColumn, RankColumn]:
    """Loss and local gradient norm of every rank, rank 0 first; shape (1 + R, rows) each."""
    losses, norms = rank_column(signals, "loss"), local_norms(signals)
    own = RankColumn(signals.loss[None], signals.present("loss")[None])
    return _stacked(own, losses), _stacked(own_local_norm(signals), norms)


def _stacked(own: RankColumn, others: RankColumn) -> RankColumn:
    return RankColumn(
        np.vstack((own.values, others.values)), np.vstack((own.present, others.present))
    )


def _bad_rank(
    signals: Signals, columns: tuple[RankColumn, RankColumn], bad: IntArray, episode: Episode
) -> Finding:
    losses, norms = columns
    first, rank = episode.first, int(bad[0])
    step = signals.step_at(first)
    around = spread_out(np.arange(max(0, first - 2), min(len(signals), first + 3)))
    named = f"rank {rank}" if len(bad) == 1 else f"{len(bad)} ranks (rank {rank} the first)"
    by_loss = bool(losses.bad[rank, first])
    what, column = ("loss", losses) if by_loss else ("local gradient norm", norms)
    evidence = [_points(signals, f"{what} of rank {rank}", column.values[rank], around)]
    if rank or not by_loss:
        evidence.append(_points(signals, "loss of rank 0", signals.loss, around))
    value = float(column.values[rank, first])
    more = f", in {steps(episode.rows)} so far" if episode.rows > 1 else ""
    position = data_position(signals, rank, step)
    inside = "" if by_loss else born(signals, step)
    there = "" if position is None else f" (data position {position:,})"
    return Finding(
        rule="rank-divergence",
        severity=Severity.ERROR,
        message=f"the {what} of {named} is {number(value)} at step {step:,} while the other ranks' "
        f"is finite{more}",
        first_step=step,
        last_step=signals.step_at(episode.last),
        subject=f"rank {rank}",
        evidence=tuple(evidence),
        cause="A bad sample in this rank's share of the batch, or a fault of its device: the other "
        f"ranks compute the same model and are sound. {inside}".rstrip(),
        remedy=f"Look at the samples that rank {rank} had at step {step:,}{there}; if they are "
        "sound, run the same step on another device and take this one out if it differs.",
    )


def _reduced_apart(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Reduced norms that are not the same on all ranks."""
    reduced = reduced_norms(signals)
    difference = apart(reduced.values, signals.norm)
    differs = difference > thresholds.relative
    rows = np.flatnonzero(differs.any(axis=0))
    for episode in told_episodes(rows, thresholds.gap):
        if episode.rows < thresholds.rows:
            continue
        rank = int(np.argmax(differs[:, episode.first])) + 1
        inside = slice(episode.first, episode.last + 1)
        worst = float(np.nanmax(difference[:, inside]))
        around = spread_out(np.arange(max(0, episode.first - 1), episode.last + 1))
        yield Finding(
            rule="rank-divergence",
            severity=Severity.ERROR if worst > 1e-3 else Severity.WARNING,
            message=f"the reduced gradient norm of rank {rank} differs from rank 0's by up to "
            f"{percent(worst)} in {steps(episode.rows)}; all ranks should share it",
            first_step=signals.step_at(episode.first),
            last_step=signals.step_at(episode.last),
            subject=f"rank {rank}",
            evidence=(
                _points(signals, f"reduced norm of rank {rank}", reduced.values[rank - 1], around),
                _points(signals, "reduced norm of rank 0", signals.norm, around),
            ),
            cause="The gradients are not reduced over all ranks: no_sync left on, a parameter "
            "outside the wrapper, or a collective that failed on one rank.",
            remedy="Check that every parameter's gradient is reduced once a step on every rank, "
            "and compare parameter norms across ranks before going on.",
        )


def _points(signals: Signals, name: str, values: FloatArray, rows: IntArray) -> Evidence:
    return Evidence(
        signal=name,
        steps=tuple(signals.step_at(int(row)) for row in rows),
        values=tuple(float(values[row]) for row in rows),
    )
