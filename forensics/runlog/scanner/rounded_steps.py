"""Steps that a log prints with three digits: ``1.09e+04`` ten times over."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import numpy as np

ROUNDED = (
    "the log prints its steps with few digits: those printed alike are laid at equal distances"
)


def told_apart(printed: Sequence[int], digits: int = 3) -> tuple[list[int], bool]:
    """The steps of records whose steps were printed with so many digits.

    Where one distance between all of them fits what is printed, it is theirs; else those that are
    printed alike divide the way to the next one. A step that falls begins anew.

    Args:
        printed: a step a record, in the order of the log.
        digits: significant ones that the log prints.

    Returns:
        A step a record, rising within each run; and whether any differs from what was printed.
    """
    steps: list[int] = []
    falls = [i for i, (a, b) in enumerate(pairwise(printed), 1) if b < a]
    for start, end in pairwise([0, *falls, len(printed)]):
        steps += _one_run(printed[start:end], digits)
    return steps, steps != list(printed)


def _one_run(printed: Sequence[int], digits: int) -> list[int]:
    if all(b > a for a, b in pairwise(printed)) or 10**digits > printed[-1]:
        return list(printed)  # what is short was printed whole: it is written twice
    return _evenly(printed, digits) or _divided(printed)


def _evenly(printed: Sequence[int], digits: int) -> list[int] | None:
    """Steps at the one distance that fits all that is printed; None where none does."""
    values = np.asarray(printed, dtype=np.float64)
    # Rounding to so many digits moves a step by at most half of the last of them.
    exponent = np.floor(np.log10(np.maximum(values, 1.0)))
    slack = np.where(exponent < digits, 0.0, 0.5 * 10.0 ** (exponent - digits + 1))
    n = np.arange(len(values))
    exact = np.flatnonzero(slack == 0)
    if len(exact) > 1:
        distances = {int(values[exact[1]] - values[exact[0]])}
    else:
        reach = (values[-1] - values[0]) / (len(values) - 1)
        distances = {round(reach), _round(reach)}
    for distance in sorted(d for d in distances if d > 0):
        lowest = np.ceil((values - slack - distance * n).max())
        highest = np.floor((values + slack - distance * n).min())
        if lowest <= highest:
            first = min(max(values[0], lowest), highest)
            return [int(first + distance * k) for k in n]
    return None


def _round(number: float) -> int:
    """The number with one digit: what people set a logging interval to."""
    power: int = 10 ** max(len(str(int(number))) - 1, 0)
    return round(number / power) * power


def _divided(printed: Sequence[int]) -> list[int]:
    steps: list[int] = []
    runs = [(value, len(list(alike))) for value, alike in groupby(printed)]
    for (value, count), (after, _) in pairwise([*runs, (runs[-1][0] + runs[-1][1], 0)]):
        steps += [value + (after - value) * k // count for k in range(count)]
    return steps
