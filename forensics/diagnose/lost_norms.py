"""Norms of Inf that no element explains: the squares overflowed, the gradients did not."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.runlog.steps import BoolArray


def lost_norms(signals: Signals) -> BoolArray:
    """Rows with a norm of Inf of which something shows that no element is bad, shape (rows,)."""
    infinite: BoolArray = (signals.norm == np.inf) & ~signals.norm_overflowed
    if not infinite.any():
        return infinite
    return np.asarray(infinite & (left_nothing(signals) | _counted_none(signals)), dtype=bool)


def left_nothing(signals: Signals) -> BoolArray:
    """Rows whose norm after the clip was measured, and is exactly 0; shape (rows,)."""
    manifest = signals.run.manifest
    measured = manifest is None or manifest.post_clip == "measured"
    zeroed = signals.present("grad_l2_post_clip") & (signals.post_norm == 0.0)
    return np.asarray(zeroed & measured, dtype=bool)


def _counted_none(signals: Signals) -> BoolArray:
    """Rows whose snapshot counts every gradient and finds no non-finite element."""
    clean = np.zeros(len(signals), dtype=bool)
    matrix = signals.param_matrix("grad_nonfinite")
    if matrix is not None:
        counted = matrix.present.any(axis=1) & ~((matrix.values > 0) & matrix.present).any(axis=1)
        clean[np.isin(signals.step, matrix.steps[counted])] = True
    return clean
