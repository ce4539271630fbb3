"""How a scale changes with depth over like layers, for the rules on initialisation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Evidence
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import column_medians, families, matrix_mask, usable
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import FloatArray, IntArray

FIRST_STEPS = 20
"""Snapshots within so many steps of the first show the initialisation and little learning."""
LATEST_START = 100
"""A record that begins later shows a trained network, not an initialisation."""
_SIGNALS = {
    "grad_l2": "gradient norm",
    "grad_std": "gradient standard deviation",
    "std": "activation standard deviation",
}


@dataclass(frozen=True)
class DepthTrend:
    """A straight line through the log of one statistic over like layers at the first steps.

    Attributes:
        signal: what was measured, in words.
        backward: does it travel from the loss to the input?
        template: the layers' name with ``*`` for the number.
        layers: their numbers, in the direction of travel, shape (L,).
        values: the statistic there, shape (L,).
        decades: factor from end to end along the line as a power of ten, in that direction.
        r2: share of the variance of the logarithm that the line explains.
        first_step: first snapshot used.
        last_step: last snapshot used.
    """

    signal: str
    backward: bool
    template: str
    layers: IntArray
    values: FloatArray
    decades: float
    r2: float
    first_step: int
    last_step: int

    def sentence(self) -> str:
        """What happens from the first layer on its way to the last, with the factor a layer."""
        per_layer = 10 ** (abs(self.decades) / (len(self.layers) - 1))
        verb, sign = ("grows", "×") if self.decades > 0 else ("falls", "÷")
        return (
            f"{self.signal} of {self.template} {verb} from {number(self.values[0])} at layer "
            f"{self.layers[0]} to {number(self.values[-1])} at layer {self.layers[-1]}: "
            f"{sign}{number(per_layer, 2)} a layer at step {self.first_step:,}"
        )

    def evidence(self) -> Evidence:
        """One value a layer, all at the first snapshot."""
        picked = spread_out(np.arange(len(self.layers)))
        return Evidence(
            signal=f"{self.signal} of {self.template} at step {self.first_step:,}",
            steps=(self.first_step,) * len(picked),
            values=tuple(float(value) for value in self.values[picked]),
            places=tuple(f"layer {layer}" for layer in self.layers[picked]),
        )


def depth_trends(signals: Signals, least: int) -> Iterator[DepthTrend]:
    """The trend of every family of at least ``least`` like layers, gradients first."""
    shapes = {name: info.shape for name, info in signals.parameter_info.items()}
    gradients = signals.param_matrix("grad_l2")
    if gradients is not None:
        wanted = matrix_mask(gradients.names, signals.parameter_info)
        yield from _trends(gradients, "grad_l2", shapes, least, wanted)
    for statistic in ("grad_std", "std"):
        matrix = signals.activation_matrix(statistic)
        if matrix is not None:
            everything = np.ones(len(matrix.names), dtype=bool)
            yield from _trends(matrix, statistic, {}, least, everything)


def no_trend(signals: Signals) -> str:
    """Why a run has no trend at all: it has no such stack of layers, or was recorded too late."""
    matrices = (
        signals.param_matrix("grad_l2"),
        signals.activation_matrix("grad_std"),
        signals.activation_matrix("std"),
    )
    starts = [int(m.steps[0]) for m in matrices if m is not None and len(m.steps)]
    if starts and min(starts) > LATEST_START:
        return f"first snapshot at step {min(starts):,}, long after the initialisation"
    return "too few like layers"


def _trends(
    matrix: ParamMatrix,
    statistic: str,
    shapes: dict[str, tuple[int, ...]],
    least: int,
    wanted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> Iterator[DepthTrend]:
    if len(matrix.steps) == 0 or matrix.steps[0] > LATEST_START:
        return
    early = matrix.steps <= matrix.steps[0] + FIRST_STEPS
    level = np.asarray(column_medians(usable(matrix)[early]), dtype=np.float64)
    backward = statistic != "std"
    for family in families(matrix.names, shapes, least):
        use = wanted[family.columns] & (level[family.columns] > 0)
        if use.sum() < least:
            continue
        order = slice(None, None, -1) if backward else slice(None)
        layers, values = family.layers[use][order], level[family.columns[use]][order]
        decades, r2 = _line(values)
        yield DepthTrend(
            signal=_SIGNALS[statistic],
            backward=backward,
            template=family.template,
            layers=layers,
            values=values,
            decades=decades,
            r2=r2,
            first_step=int(matrix.steps[early][0]),
            last_step=int(matrix.steps[early][-1]),
        )


def _line(values: FloatArray) -> tuple[float, float]:
    """Decades from end to end along the least-squares line through log10, and its R²."""
    logs = np.log10(values)
    at = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(at @ logs / (at @ at))
    spread = float(((logs - logs.mean()) ** 2).sum())
    explained = slope * slope * float(at @ at)
    return slope * (len(values) - 1), explained / spread if spread > 0 else 0.0
