"""What a step makes of a moving average: which weights it takes in, and in which shares.

An average of any class is looked at by its tensors before and after the step. The shares come from
them and not from a setting: ``after = d · before + (1 - d) · weights`` holds for every element with
one ``d``, be it a constant, one that warms up, or that of a plain mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forensics.diagnose.bisection_result import Origin
from forensics.replay.applied.average_look import AverageLook
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.judgement import applied_origin
from forensics.replay.tracing.step_facts import StepFacts

SHARES = "ema.update"
"""The operator of an average that mixes old and new in wrong shares."""
_FITS = 1e-3
"""Share of the average's movement that a fit may leave over, where rounding leaves less."""
_SUMS_UP = 1e-2
"""Difference from 1 at which shares do not sum to 1: with less, 100 steps change little."""
_WARM_UP = 10
"""Steps in which a decay that warms up may be anything."""
_LONG = 50
"""Steps after which an average that never moved is worth a word."""


@dataclass(frozen=True, kw_only=True)
class _Mix:
    """How an average moved in a step.

    Attributes:
        kept: share of the old average, where the weights after the step were taken in.
        fits: the shares explain every element.
        stale: those before the step were taken in.
        total: sum of the shares that explain it best, where neither does; else 1.
    """

    kept: float
    fits: bool
    stale: bool
    total: float = 1.0


def wrong_shares(facts: StepFacts) -> Origin | None:
    """The shares of old and new do not sum to 1, or stand the wrong way round."""
    mix = _mix_of(facts) if facts.taken else None
    if mix is None:
        return None
    decay = getattr(facts.training.ema, "decay", None)
    told = ""
    if abs(mix.total - 1) > _SUMS_UP:
        told = (
            f"the average takes the old and the new in shares that sum to {mix.total:.4g}: it "
            f"{'grows' if mix.total > 1 else 'shrinks'} with every step"
        )
    elif mix.fits and isinstance(decay, float) and _is_turned(mix.kept, decay, facts.context.step):
        told = (
            f"the average keeps {mix.kept:.4g} of itself and takes {1 - mix.kept:.4g} of the new "
            f"weights, where its decay of {decay:g} says the reverse"
        )
    if not told:
        return None
    return applied_origin(facts, SHARES, Phase.EMA, summary=told)


def average_note(facts: StepFacts) -> str:
    """A sentence where an average moves in a skipped step or by old weights; else empty."""
    mix = _mix_of(facts)
    if mix is None:
        return ""
    if facts.skipped:
        return "the average is updated in a skipped step, too: is that meant?"
    if mix.stale:
        return (
            "the average takes in the weights as they were before the optimizer's step: it is "
            "updated before the step, and lags by one"
        )
    return ""


def still_note(seen: Mapping[int, AverageLook]) -> str:
    """A sentence where an average is bit for bit the same at two distant steps; else empty."""
    if len(seen) < 2:
        return ""
    first, last = min(seen), max(seen)
    one, other = seen[first], seen[last]
    same = one.average.shape == other.average.shape and torch.equal(one.average, other.average)
    if not same or last - first < _LONG or torch.equal(one.weights, other.weights):
        return ""
    return (
        f"the average is the same before step {first:,} and before step {last:,}, though the "
        "weights moved: is it updated, and of this model?"
    )


def _mix_of(facts: StepFacts) -> _Mix | None:
    """How the average moved; None where it did not, or nothing can be told."""
    before, after = facts.start.average, facts.average
    if before is None or after is None or before.average.shape != after.average.shape:
        return None
    moved = float((after.average - before.average).norm())
    size = float(after.average.norm())
    if not 0 < moved < float("inf"):
        return None
    fits = max(_FITS, 8 * after.eps * size / moved)
    kept, left = _fit(before.average, after.average, after.weights, moved)
    if left <= fits:
        return _Mix(kept=kept, fits=True, stale=False)
    _, left_old = _fit(before.average, after.average, before.weights, moved)
    if left_old <= fits:
        return _Mix(kept=kept, fits=False, stale=left > 10 * fits)
    parts = torch.stack([before.average, after.weights], dim=1)
    shares = torch.linalg.lstsq(parts, after.average[:, None]).solution
    rest = float((parts @ shares - after.average[:, None]).norm())
    total = float(shares.sum()) if rest <= fits * moved else 1.0
    return _Mix(kept=kept, fits=False, stale=False, total=total)


def _fit(before: Tensor, after: Tensor, weights: Tensor, moved: float) -> tuple[float, float]:
    """The share that is kept, and what it leaves over of the movement."""
    apart, left = before - weights, after - weights
    square = float(apart @ apart)
    if not square:
        return 0.0, float("inf")
    kept = float(apart @ left) / square
    return kept, float((left - kept * apart).norm()) / moved


def _is_turned(kept: float, decay: float, step: int | None) -> bool:
    turned = 0.6 < decay < 1 and abs(kept - (1 - decay)) <= 0.02 * (1 - decay)
    return turned and step is not None and step >= _WARM_UP
