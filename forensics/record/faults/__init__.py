"""Faults that really happen, each a small recipe: for sample runs, and to judge a diagnosis by."""

from __future__ import annotations

from forensics.record.faults.clipping import ClipBeforeUnscale, ClipEveryStep, ClipStarved
from forensics.record.faults.data import BadSample, BatchNormPoisoned, TargetSpike
from forensics.record.faults.gradients import (
    FrozenLayer,
    InfGradient,
    NanApplied,
    Vanishing,
    WhereTrap,
)
from forensics.record.faults.optimization import LrTooHigh, LrZero
from forensics.record.faults.scaling import (
    Fp16Overflow,
    ScalerFrozen,
    ScalerOscillation,
    UpdateForgotten,
)
from forensics.record.recipe import Recipe

RECIPES: tuple[type[Recipe], ...] = (
    BadSample,
    TargetSpike,
    BatchNormPoisoned,
    InfGradient,
    WhereTrap,
    NanApplied,
    Vanishing,
    FrozenLayer,
    ClipEveryStep,
    ClipStarved,
    ClipBeforeUnscale,
    Fp16Overflow,
    ScalerOscillation,
    ScalerFrozen,
    UpdateForgotten,
    LrTooHigh,
    LrZero,
)
"""Listed by where the fault lies: data, backward, clipping, loss scaling, optimizer."""
