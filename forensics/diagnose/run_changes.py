"""What changed between two runs as a whole: loss, norm, and how often they clip and skip.

Two seeds never have the same rows. What is compared is medians over blocks of the same steps, so
that neither the trend nor a spike counts, and the spread of their differences is the noise.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.series import block_bounds, median, sigma
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

BLOCKS = 20
"""Stretches of the common steps; the second half of them is judged, where runs have settled."""
MATTERS = {"loss": 0.01, "gradient norm": 0.05, "clip rate": 0.02, "skip rate": 0.002}
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
        name: ``loss``, ``gradient norm``, ``clip rate`` or ``skip rate``.
        a: in run A, over the second half of the common steps.
        b: in run B.
        difference: B against A: relative for loss and norm, absolute for rates.
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
    """Loss, norm, clip rate and skip rate over the common steps.

    Args:
        a: run A.
        b: run B.
        rows: rows of A and of B that have the same steps.
    """
    mine, theirs = rows
    if len(mine) < LEAST:
        return ()
    found = [
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


def _level(name: str, a: FloatArray, b: FloatArray) -> Change | None:
    """Medians of blocks, one against the other."""
    both = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    if len(both) < LEAST:
        return None
    left, right = _second_half(a[both]), _second_half(b[both])
    size = max(abs(float(np.median(left))), abs(float(np.median(right))), 1e-300)
    apart = (right - left) / size
    difference = float(np.median(apart))
    noise = ERRORS * sigma(apart) * 1.25 / np.sqrt(len(apart))
    return Change(
        name=name,
        a=float(np.median(left)),
        b=float(np.median(right)),
        difference=difference,
        noise=float(noise),
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
