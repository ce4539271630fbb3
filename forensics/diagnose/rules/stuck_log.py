"""Rows repeat: loss and norm are the same to the last bit.

What it detects
    At least 3 rows in a row, none of them skipped, with the same loss and the same gradient norm,
    bit for bit.

Why it matters
    Two steps of training never give the same numbers. Either the logger writes old values again,
    and what happened meanwhile is unknown; or nothing changes: the same batch, weights that do
    not move.

Evidence
    The repeated losses and the one before.

Silent when
    Numbers are printed with 4 digits or fewer, are 0, or have crept up or fallen to a limit (a fit
    that has converged to the last bit; LBFGS comes there within a few steps, without creeping, and
    takes none after it), or the learning rate is 0, which has a rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import row_medians, runs_of, significant_digits
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, span
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

_BEFORE = 17


@dataclass(frozen=True)
class Thresholds:
    """How much repetition is no chance."""

    rows: int = threshold(3, "two equal rows happen with float32 losses once in 10^7 rows")
    digits: int = threshold(5, "with 4 digits neighbouring rows agree by chance")
    creep: float = threshold(1e-4, "relative step before a stop; training noise is 1e-3 and more")
    fallen: float = threshold(1e-6, "share of the first loss: float32 resolves 1e-7 of it")
    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("loss", "grad_l2_pre_clip"))
def stuck_log(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode."""
    loss, norm = signals.loss, signals.norm
    if min(significant_digits(loss), significant_digits(norm)) < thresholds.digits:
        return
    first, last = runs_of(_repeats(signals))
    if len(first) == 0:
        return
    first = np.maximum(first - 1, 0)  # the row that is repeated
    long = (last - first + 1 >= thresholds.rows) & ~_crept(loss, first, thresholds.creep)
    long &= ~_at_the_bottom(signals, first, thresholds)
    first, last = first[long], last[long]
    if len(first) == 0:
        return
    cuts = np.flatnonzero(first[1:] - last[:-1] > thresholds.gap) + 1
    starts = np.append(0, cuts[: thresholds.told - 1])
    ends = np.append(starts[1:] - 1, len(first) - 1)
    for a, b in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = int((last[a : b + 1] - first[a : b + 1] + 1).sum())
        yield _finding(signals, int(first[a]), int(last[b]), rows)


def _repeats(signals: Signals) -> BoolArray:
    """Which rows say the same as the row before them."""
    loss, norm = signals.loss, signals.norm
    same = np.zeros(len(loss), dtype=bool)
    same[1:] = (loss[1:] == loss[:-1]) & (norm[1:] == norm[:-1])
    if not same.any():
        return same
    same &= np.isfinite(loss) & np.isfinite(norm) & (norm != 0) & (loss != 0)
    return np.asarray(same & ~signals.skipped & ~(signals.lr == 0), dtype=bool)


def _crept(loss: FloatArray, first: IntArray, creep: float) -> BoolArray:
    """Did the loss come to its stop in steps too small for training noise?"""
    index = first[:, None] - np.arange(_BEFORE)
    steps = np.abs(np.diff(np.where(index >= 0, loss[np.maximum(index, 0)], np.nan), axis=1))
    usual = row_medians(steps)
    return np.asarray(usual <= creep * np.abs(loss[first]), dtype=bool)  # no past: no creeping


def _at_the_bottom(signals: Signals, first: IntArray, limits: Thresholds) -> BoolArray:
    """Is there nothing left to learn: loss and gradient are next to nothing of what they were?"""
    start = np.abs(signals.finite_loss.values[:1])
    steep = np.nanmax(np.where(np.isfinite(signals.norm), signals.norm, np.nan))
    low = np.abs(signals.loss[first]) <= limits.fallen * start
    if _by_lbfgs(signals):  # whatever the data leave of the loss
        low = np.ones_like(low)
    return np.asarray(low & (signals.norm[first] <= limits.fallen**0.5 * steep), dtype=bool)


def _by_lbfgs(signals: Signals) -> bool:
    """Was it trained by LBFGS, which returns at once where its tolerances are met?"""
    manifest = signals.run.manifest
    return manifest is not None and str(manifest.optimizer.get("name", "")).lower() == "lbfgs"


def _finding(signals: Signals, first: int, last: int, rows: int) -> Finding:
    start, end = signals.step_at(first), signals.step_at(last)
    to_end = last == len(signals) - 1
    where = f"from step {start:,} to the end" if to_end else f"in {span(start, end)}"
    every = rows == last - first + 1
    some = "" if every else f"{rows:,} rows of them "
    return Finding(
        rule="stuck-log",
        severity=Severity.WARNING,
        message=(
            f"the log repeats itself {where}: {some}loss {number(float(signals.loss[first]))} and "
            f"norm {number(float(signals.norm[first]))}, bit for bit"
        ),
        first_step=start,
        last_step=end,
        evidence=(signals.evidence("loss", signals.loss, [first - 1, first, first + 1, last]),),
        cause=(
            "The logger repeats its last values, or nothing changes from step to step: the same "
            "batch again and again and an optimizer that does not move the weights."
        ),
        remedy=(
            "Check that the values are taken anew at each step, then that the parameters the "
            "optimizer holds are the model's and that batches differ."
        ),
    )
