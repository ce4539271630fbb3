"""How finely rates are written, told from the rates alone."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.runlog.scanner.rate_digits import spacing_of

EXACT = 3e-4 * 0.5 * (1 + np.cos(np.linspace(0.01, 3.1, 200)))


def test_rates_of_full_precision_are_as_exact_as_a_double() -> None:
    assert (spacing_of(EXACT) < 1e-15 * EXACT).all()


def test_single_precision_is_known_though_it_prints_many_digits() -> None:
    single = EXACT.astype(np.float32).astype(float)
    share = spacing_of(single) / single
    assert (share > 5e-8).all()
    assert (share < 2e-7).all()


@pytest.mark.parametrize("digits", [2, 3, 5])
def test_significant_digits(digits: int) -> None:
    written = np.array([float(f"{value:.{digits - 1}e}") for value in EXACT])
    exponent = np.floor(np.log10(written))
    np.testing.assert_allclose(spacing_of(written), 10.0 ** (exponent - digits + 1))


@pytest.mark.parametrize("decimals", [6, 8])
def test_decimals(decimals: int) -> None:
    assert (spacing_of(np.round(EXACT, decimals)) >= 10.0**-decimals * 0.999).all()


def test_zero_and_round_numbers_are_no_trouble() -> None:
    assert np.isfinite(spacing_of(np.array([0.0, 1e-4, 0.1, 12.0]))).all()
