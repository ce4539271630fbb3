"""How large the scaled gradients are beside what fp16 can hold."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.blocks import first_where
from forensics.diagnose.signals import Signals
from forensics.runlog.steps import FloatArray

_SAMPLE = 1000


def elements_log2(signals: Signals) -> FloatArray:
    """log2 of the root mean square of the scaled gradient elements, shape (rows,).

    norm · scale / √P, with P the elements of the parameters that are trained. fp16 holds nothing
    below 2^-24. A norm of 0 is -inf; NaN where it is not known (no fp16, no P, no scale).
    """
    unknown = np.full(len(signals), np.nan)
    manifest = signals.run.manifest
    if manifest is None or signals.precision != "fp16":
        return unknown
    elements = sum(info.numel for info in manifest.parameters if info.requires_grad)
    if elements == 0:
        return unknown
    with_scaler = signals.scaling.active
    scale = signals.scale if signals.has("scaler_scale") else unknown if with_scaler else 1.0
    finite = np.isfinite(signals.norm) & (signals.norm >= 0)
    return np.asarray(np.log2(np.where(finite, signals.norm, np.nan) * scale / np.sqrt(elements)))


def prints_few_digits(values: FloatArray) -> bool:
    """Are the values rounded to 4 decimals or fewer, so that a small one is printed as 0?"""
    positive = values[
        first_where(len(values), lambda at: np.isfinite(values[at]) & (values[at] > 0), _SAMPLE)
    ]
    scaled = positive * 1e4
    return len(positive) > 0 and bool((np.abs(scaled - np.round(scaled)) < 1e-6 * scaled).all())
