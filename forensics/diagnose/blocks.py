"""Long series a block at a time: what is made along the way stays in the processor's cache.

A temporary of ten million floats is 80 MB of fresh pages, and the kernel's clearing of those costs
more than the arithmetic. A block of it is a quarter of a megabyte that is used again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from forensics.runlog.steps import BoolArray, FloatArray, IntArray

BLOCK = 1 << 15
"""Rows a block; a multiple of 128, the stretches that spikes are looked for in."""


def blocks(stop: int, start: int = 0) -> Iterator[slice]:
    """Slices of at most ``BLOCK`` rows, in order, from ``start`` to ``stop``."""
    for begin in range(start, stop, BLOCK):
        yield slice(begin, min(begin + BLOCK, stop))


def moved(rows: slice, by: int) -> slice:
    """The slice ``by`` rows further on."""
    return slice(rows.start + by, rows.stop + by)


def mask_where(stop: int, test: Callable[[slice], BoolArray]) -> BoolArray:
    """``test`` of all rows before ``stop``, shape (stop,); it is asked for a block at a time."""
    mask = np.empty(stop, dtype=bool)
    for rows in blocks(stop):
        mask[rows] = test(rows)
    return mask


def rows_where(stop: int, test: Callable[[slice], BoolArray], start: int = 0) -> IntArray:
    """Rows from ``start`` to ``stop`` for which ``test`` holds, ascending."""
    found = [np.flatnonzero(test(rows)) + rows.start for rows in blocks(stop, start)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def first_where(stop: int, test: Callable[[slice], BoolArray], most: int) -> IntArray:
    """The first ``most`` rows before ``stop`` for which ``test`` holds; it is asked no further."""
    found = np.empty(0, dtype=np.int64)
    for rows in blocks(stop):
        found = np.concatenate((found, np.flatnonzero(test(rows)) + rows.start))
        if len(found) >= most:
            break
    return found[:most]


def mapped(function: Callable[[FloatArray], FloatArray], values: FloatArray) -> FloatArray:
    """``function`` of each value, shape of ``values``; it makes its temporaries for a block."""
    result = np.empty(len(values))
    for rows in blocks(len(values)):
        result[rows] = function(values[rows])
    return result
