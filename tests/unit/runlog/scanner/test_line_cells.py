from __future__ import annotations

import numpy as np

from forensics.runlog.scanner.line_cells import LineCells


def test_a_name_within_another_is_not_it() -> None:
    cells = LineCells({b"lr": "lr", b"loss": "loss"}, before=rb"[\s,]")
    found = cells.columns([b" base_lr: 9.0 lr: 0.5, loss_cls: 8.0, loss: nan", b" loss: 1,234.5"])
    values, there = found["lr"]
    assert there is not None
    assert there.tolist() == [True, False]
    assert values[0] == 0.5
    np.testing.assert_array_equal(found["loss"][0], [np.nan, 1234.5])


def test_a_column_that_no_line_has_is_none() -> None:
    assert LineCells({b"lr": "lr"}, before=rb",", equals=b"=").columns([b" lr=1", b",lr: 2"]) == {}
