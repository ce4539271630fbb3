"""How finely the learning rates of a log are written."""

from __future__ import annotations

import re

import numpy as np

from forensics.runlog.steps import FloatArray

_LOOKED_AT = 512
_DOUBLE = 16
"""Significant digits from which a number is as exact as a float64 can be."""
_NUMBER = re.compile(r"0*(\d*)\.?(\d*?)0*(?:e([+-]\d+))?\Z")


def spacing_of(rate: FloatArray) -> FloatArray:
    """The distance between neighbours of what can be written, at each of some rates.

    Of rates rounded to so many significant digits it is a share of the rate, of rates rounded to
    so many decimals a constant; whichever they are, the larger one is right.

    Args:
        rate: learning rates, finite and at least 0, shape (n,).
    """
    some = rate[:: max(len(rate) // _LOOKED_AT, 1)]
    with np.errstate(over="ignore"):  # a rate that no single holds is none
        single = (some == some.astype(np.float32)).all()
    digits, decimals = np.max([_written(float(value)) for value in some], axis=0)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(np.maximum(rate, 1e-300)))
    if single and digits >= 8:
        return np.asarray(rate * 2.0**-23)
    if digits >= _DOUBLE:
        return np.asarray(rate * 2.0**-50)
    return np.asarray(np.maximum(10.0 ** (exponent - digits + 1), 10.0**-decimals))


def _written(value: float) -> tuple[int, int]:
    """Significant digits and decimals of a number as it is written shortest."""
    match = _NUMBER.match(repr(value))
    if match is None:
        return 0, 0
    whole, part, exponent = match.group(1), match.group(2), int(match.group(3) or 0)
    digits = len((whole + part).lstrip("0")) if not whole else len(whole + part)
    return digits, len(part) - exponent
