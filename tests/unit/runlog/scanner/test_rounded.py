"""A loss scale that prints as 0 was rounded; one that was not written stays absent."""

from __future__ import annotations

import numpy as np

from forensics.runlog.scanner.rounded import restore_rounded_scale
from forensics.runlog.steps import StepTable


def test_zeros_become_the_largest_scale_that_prints_so() -> None:
    table = StepTable.from_arrays({"step": [1, 2, 3], "scaler_scale": [1.0, 0.0, None]})
    mended, note = restore_rounded_scale(table, 0.5)
    assert mended["scaler_scale"][:2].tolist() == [1.0, 0.5]
    assert np.isnan(mended["scaler_scale"][2])
    assert mended.present("scaler_scale").tolist() == [True, True, False]
    assert "0.5" in note


def test_without_a_zero_nothing_changes() -> None:
    table = StepTable.from_arrays({"step": [1, 2], "scaler_scale": [1.0, 2.0**-30]})
    assert restore_rounded_scale(table, 0.5) == (table, "")
    bare = StepTable.from_arrays({"step": [1, 2], "loss": [1.0, 2.0]})
    assert restore_rounded_scale(bare, 0.5) == (bare, "")
