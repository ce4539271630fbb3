"""How large the scaled gradients are beside what fp16 can hold."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.blocks import blocks, first_where
from forensics.diagnose.signals import Signals
from forensics.runlog.steps import FloatArray

_SAMPLE = 1000


def elements_log2(signals: Signals) -> FloatArray:
    """log2 of the root mean square of the scaled gradient elements, shape (rows,).

    norm · scale / √P, with P the elements of the parameters that are trained. fp16 holds nothing
    below 2^-24. A norm of 0 is -inf; NaN where it is not known (no fp16, no P, no scale).
    """
    return signals.derived(_elements_log2)


def _elements_log2(signals: Signals) -> FloatArray:
    unknown = np.full(len(signals), np.nan)
    manifest = signals.run.manifest
    if manifest is None or signals.precision != "fp16":
        return unknown
    elements = sum(info.numel for info in manifest.parameters if info.requires_grad)
    if elements == 0:
        return unknown
    scale = signals.scale
    if not signals.has("scaler_scale"):
        scale = unknown if signals.scaling.active else np.ones(len(signals))
    size = np.empty(len(signals))
    for at in blocks(len(signals)):
        norm = signals.norm[at]
        known = np.where(np.isfinite(norm) & (norm >= 0), norm, np.nan)
        size[at] = np.log2(known * scale[at] / np.sqrt(elements))
    return size


def prints_few_digits(values: FloatArray) -> bool:
    """Are the values rounded to 4 decimals or fewer, so that a small one is printed as 0?"""
    positive = values[
        first_where(len(values), lambda at: np.isfinite(values[at]) & (values[at] > 0), _SAMPLE)
    ]
    scaled = positive * 1e4
    return len(positive) > 0 and bool((np.abs(scaled - np.round(scaled)) < 1e-6 * scaled).all())
