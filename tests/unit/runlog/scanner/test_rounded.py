"""A loss scale or a rate that prints as 0 was rounded; one that was not written stays absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.runlog.scanner.rounded import restore_rounded_scale
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.logs import column, read


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


@pytest.mark.parametrize(
    ("rate", "known"),
    [("0.000000", False), ("0.0000", False), ("0.0", True), ("0", True), ("0.000e+00", True)],
)
def test_a_rate_that_is_printed_as_0_may_be_a_small_one(
    tmp_path: Path, rate: str, known: bool
) -> None:
    text = "".join(f"step {n}, loss: {9 - n}.5, lr: {rate}\n" for n in range(1, 6))
    table = read(tmp_path, text + "step 6, loss: 2.5, lr: 0.000012\n")
    assert column(table, "lr") == [0.0 if known else None] * 5 + [1.2e-5]
    assert table.facts is not None
    assert any(f"prints as {rate} " in note for note in table.facts.notes) is not known
