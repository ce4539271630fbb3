"""Random step logs for property tests: any values in any columns, with structure and without.

A table is drawn by its length and a seed, so that hypothesis shrinks it to the shortest log that
fails; what is in it comes from numpy, which is a hundred times faster than drawing each cell.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from forensics.diagnose.signals import Signals
from forensics.runlog.run import Run
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import Column, StepTable, text_column

Generator = np.random.Generator

ODD = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.nan,
        np.inf,
        -np.inf,
        1e308,
        -1e308,
        5e-324,
        1e-300,
        65504.0,
        2.0**-128,
    ]
)
EXTRAS = ("val_loss", "epoch", "lr_1", "norm_overflow", "grads_scaled", "time_s", "foreign")
FLAGS = ("skipped", "norm_overflow", "grads_scaled")
REASONS = ("", "nonfinite_loss", "nonfinite_grad", "nonfinite_grad:layer.0.weight", "other")


def floats(rng: Generator, rows: int) -> np.ndarray:
    """A column of floats: up to four stretches, each with a habit of its own, then odd cells."""
    cuts = np.sort(rng.integers(0, rows + 1, size=rng.integers(0, 4)))
    with np.errstate(over="ignore"):
        pieces = [_stretch(rng, len(part)) for part in np.split(np.arange(rows), cuts)]
    values = np.concatenate(pieces)
    odd = rng.random(rows) < rng.choice([0.0, 0.01, 0.3])
    values[odd] = rng.choice(ODD, size=int(odd.sum()))
    return values


def _stretch(rng: Generator, rows: int) -> np.ndarray:
    at = np.arange(rows)
    level = float(rng.choice([1e-6, 0.1, 2.0, 2.0, 50.0, 1e6]))
    kind = rng.integers(0, 9)
    if kind == 0:
        return np.full(rows, level)
    if kind == 1:
        return level * rng.standard_normal(rows)
    if kind == 2:
        return level * np.exp(np.minimum(rng.choice([-0.1, 0.001, 0.05, 0.5]) * at, 700))
    if kind == 3:
        return level * np.exp(np.clip(np.cumsum(rng.normal(0, 0.3, rows)), -600, 600))
    if kind == 4:
        return level * np.where(rng.random(rows) < 0.05, rng.choice([10.0, 1e8]), 1.0)
    if kind == 5:
        return level * (1 + 0.3 * (-1.0) ** at)
    if kind == 6:
        return rng.choice(ODD, size=rows)
    if kind == 7:
        return np.round(level * np.exp(0.1 * rng.standard_normal(rows)), 2)
    return level * np.exp(0.2 * rng.standard_normal(rows))


def random_table(rng: Generator, rows: int) -> StepTable:
    """A step log of any columns in any order, with absent cells and gaps between steps."""
    gaps = rng.choice([1, 1, 1, 2, 50], size=rows) if rng.random() < 0.3 else np.ones(rows)
    start = int(rng.choice([0, 0, 1, 100_000]))
    columns = {"step": Column(start + np.cumsum(gaps).astype(np.int64), np.ones(rows, dtype=bool))}
    names = [name for name in (*CANONICAL_NAMES[1:], *EXTRAS) if rng.random() < 0.8]
    for name in rng.permutation(names).tolist():
        columns[name] = _column(rng, name, rows)
    return StepTable(columns)


def _column(rng: Generator, name: str, rows: int) -> Column:
    if name == "skip_reason":
        return text_column(rng.choice(REASONS, size=rows).tolist())
    present = rng.random(rows) >= rng.choice([0.0, 0.0, 0.02, 0.9])
    if name in FLAGS:
        share = rng.choice([0.0, 0.01, 0.5, 1.0])
        return Column(present & (rng.random(rows) < share), present)
    values = floats(rng, rows)
    if name == "scaler_scale" and rng.random() < 0.6:
        values = np.exp2(np.clip(16 + np.cumsum(rng.choice([0, 0, 0, 1, -1], size=rows)), -140, 30))
    return Column(np.where(present, values, np.nan), present)


@st.composite
def signals(draw: st.DrawFn, most: int = 700) -> Signals:
    """The signals of a random step log of up to ``most`` rows."""
    rows = draw(st.integers(0, most))
    seed = draw(st.integers(0, 2**32 - 1))
    table = random_table(np.random.default_rng(seed), rows)
    return Signals(Run(path=Path("run"), steps=table))
