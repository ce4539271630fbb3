"""Replicas that began alike have different weights.

What it detects
    Ranks whose parameter norm or digest equals rank 0's at the first steps and differs from some
    step on. One finding for all ranks.

Why it matters
    Data parallel training is one model only as long as all replicas are the same. Once they
    differ, the averaged gradient belongs to none of them, and the checkpoint of rank 0 is not
    what was trained.

Evidence
    The parameter norm of rank 0 and of the first rank that left.

Silent when
    The weights are sharded (the norms differ from the first step on), or the replicas meet again
    and again, as where they are averaged every so many steps by design.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.ranks import SAME, apart, rank_column, rank_texts
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import runs_of, spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.whence import whence
from forensics.diagnose.wording import percent
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """When replicas count as alike, and as apart."""

    relative: float = threshold(SAME, "fp32 sums in another order; replicas are identical")
    alike: int = threshold(2, "first rows that must be equal, else the weights are sharded")
    meetings: int = threshold(2, "returns to equality that mean averaging by design")


@rule(thresholds=Thresholds, parts=("ranks.param_l2|ranks.param_digest",))
def replica_drift(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding, about the rank that left first."""
    if len(signals) == 0:
        return
    norms = rank_column(signals, "param_l2")
    own = signals.column("param_l2")
    difference = apart(norms.values, own)
    left: list[tuple[int, int]] = []
    for rank, (rows, same) in enumerate(rank_texts(signals, "param_digest"), start=1):
        known = np.flatnonzero(np.isfinite(difference[rank - 1]))
        starts = [
            _leaves(known, difference[rank - 1, known] <= thresholds.relative, thresholds),
            _leaves(rows, same, thresholds),
        ]
        left += [(start, rank) for start in starts if start >= 0]
    if left:
        yield _finding(signals, (own, norms.values, difference), sorted(left))


def _leaves(rows: IntArray, same: BoolArray, thresholds: Thresholds) -> int:
    """The row from which on the two differ to the end; -1 where they do not."""
    if len(rows) <= thresholds.alike or not same[: thresholds.alike].all() or same[-1]:
        return -1
    starts, _ = runs_of(~same)
    met = len(starts) - 1
    return -1 if met >= thresholds.meetings else int(rows[starts[-1]])


def _finding(
    signals: Signals, series: tuple[FloatArray, FloatArray, FloatArray], left: list[tuple[int, int]]
) -> Finding:
    own, values, difference = series
    row, rank = left[0]
    ranks = sorted({rank for _, rank in left})
    mine = difference[rank - 1]
    picked = spread_out(np.flatnonzero(np.isfinite(mine[max(0, row - 2) :])) + max(0, row - 2))
    last = float(mine[np.isfinite(mine)][-1]) if np.isfinite(mine).any() else float("nan")
    apart_by = f" and is {percent(last)} apart in norm at the end" if last > SAME else ""
    others = f" ({len(ranks)} ranks in all)" if len(ranks) > 1 else ""
    step = signals.step_at(row)
    return Finding(
        rule="replica-drift",
        severity=Severity.ERROR,
        message=f"rank {rank} has other weights than rank 0 from step {step:,} on{apart_by}"
        f"{others}",
        first_step=step,
        last_step=signals.last_step,
        subject=f"rank {rank}",
        evidence=tuple(
            Evidence(
                signal=f"param_l2 of rank {who}",
                steps=tuple(int(s) for s in signals.step[picked]),
                values=tuple(float(v) for v in series_of[picked]),
            )
            for who, series_of in ((0, own), (rank, values[rank - 1]))
            if len(picked)
        ),
        cause="An update that not every rank made alike: a step skipped on one rank only, a "
        "gradient that was not reduced, a bit flip, or state changed outside the optimizer.",
        remedy=f"{whence(signals.run, step)}; broadcast rank 0's weights, and "
        "make the skip decision from reduced values so that all ranks take it together.",
    )
