"""What changed between two runs as a whole: loss, norm, and how often they clip and skip.

Two seeds never have the same rows. What is compared is medians over blocks of the same steps, so
that neither the trend nor a spike counts, and the spread of their differences is the noise.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.series import block_bounds, median, sigma
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

BLOCKS = 20
"""Stretches of the common steps; the second half of them is judged, where runs have settled."""
MATTERS = {
    "loss": 0.01,
    "gradient norm": 0.05,
    "clip rate": 0.02,
    "skip rate": 0.002,
    "non-finite rate": 0.002,
}
"""Least change that matters (relative for loss and norm, absolute for rates); the seed alone moves
the loss of a small run by half a per cent or so."""
ERRORS = 4.0
"""Standard errors that a change must exceed: one comparison in some thousands by chance."""
LEAST = 40
"""Common rows below which nothing is said."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One quantity in both runs.

    Attributes:
        name: ``loss``, ``gradient norm``, ``clip rate``, ``skip rate`` or ``non-finite rate``.
        a: in run A: loss and norm over the second half of the common steps where both are finite,
            rates over all common steps.
        b: in run B.
        difference: ``b`` against ``a``: relative to ``a`` for loss and norm, absolute for rates.
        noise: what chance makes of it, in the same unit.
        changed: is it more than chance, and enough to matter?
    """

    name: str
    a: float
    b: float
    difference: float
    noise: float
    changed: bool


def changes(a: Signals, b: Signals, rows: tuple[IntArray, IntArray]) -> tuple[Change, ...]:
    """Loss, norm and the rates of clipping, skips and non-finite steps over the common steps.

    Args:
        a: run A.
        b: run B.
        rows: rows of A and of B that have the same steps.
    """
    mine, theirs = rows
    if len(mine) < LEAST:
        return ()
    found = [
        _nonfinite_rate(nonfinite(a)[mine], nonfinite(b)[theirs]),
        _level("loss", a.loss[mine], b.loss[theirs]),
        _level("gradient norm", a.norm[mine], b.norm[theirs]),
    ]
    clips = clip_of(a), clip_of(b)
    if clips[0].known and clips[1].known:
        seen = clips[0].seen[mine] & clips[1].seen[theirs]
        found.append(
            _rate("clip rate", clips[0].clipped[mine][seen], clips[1].clipped[theirs][seen])
        )
    if a.has("skipped") and b.has("skipped"):
        found.append(_rate("skip rate", a.skipped[mine], b.skipped[theirs]))
    return tuple(change for change in found if change is not None)


def nonfinite(signals: Signals) -> BoolArray:
    """Rows in which the run is bad, shape (rows,): the loss, or a norm that was surely applied.

    Where a log tells no skips, a norm may be of a step that the scaler skipped, which is sound.
    """
    return signals.loss_bad | (signals.norm_bad & signals.skips_known & ~signals.skipped)


def _nonfinite_rate(a: BoolArray, b: BoolArray) -> Change | None:
    """Nothing where neither has such a row; where one has none, no chance makes the other's."""
    if not (a.any() or b.any()):
        return None
    change = _rate("non-finite rate", a, b)
    if change is None or (a.any() and b.any()):
        return change
    return replace(change, noise=0.0, changed=True)


def _level(name: str, a: FloatArray, b: FloatArray) -> Change | None:
    """Medians of blocks, one against the other.

    What is shown are the two medians and their own difference; how sure it is, the differences of
    the same blocks tell, which no trend widens. Where the two disagree, that is noise as well.
    """
    both = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    if len(both) < LEAST:
        return None
    left, right = _second_half(a[both]), _second_half(b[both])
    level_a, level_b = float(np.median(left)), float(np.median(right))
    size = max(abs(level_a), abs(level_b), 1e-300)
    apart = (right - left) / size
    difference = (level_b - level_a) / size
    noise = ERRORS * sigma(apart) * 1.25 / np.sqrt(len(apart))
    noise += abs(difference - float(np.median(apart)))
    to_a = size / abs(level_a) if level_a else 1.0
    return Change(
        name=name,
        a=level_a,
        b=level_b,
        difference=difference * to_a,
        noise=float(noise) * to_a,
        changed=bool(abs(difference) > max(MATTERS[name], noise)),
    )


def _second_half(values: FloatArray) -> FloatArray:
    """Medians of the later blocks."""
    bounds = block_bounds(len(values), BLOCKS)
    medians = np.array([median(values[x:y]) for x, y in pairwise(bounds.tolist())])
    return medians[len(medians) // 2 :]


def _rate(name: str, a: BoolArray, b: BoolArray) -> Change | None:
    """Shares over all common steps; steps in a row are not independent, so counts are halved."""
    if min(len(a), len(b)) < LEAST:
        return None
    left, right = float(a.mean()), float(b.mean())
    pooled = (left + right) / 2
    noise = ERRORS * np.sqrt(pooled * (1 - pooled) * 4 / len(a))
    return Change(
        name=name,
        a=left,
        b=right,
        difference=right - left,
        noise=float(noise),
        changed=bool(abs(right - left) > max(MATTERS[name], noise)),
    )
