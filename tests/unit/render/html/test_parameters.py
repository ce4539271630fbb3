"""The table of the parameters."""

from pathlib import Path

import pytest

from forensics.render.html.parameters import params_view
from tests.unit.render.html.pages import HOSTILE, hostile_run, spiked_run


def test_a_run_without_snapshots_has_no_table() -> None:
    assert params_view(spiked_run()) is None


def test_every_parameter_has_a_row_with_its_shape_and_numbers(tmp_path: Path) -> None:
    view = params_view(hostile_run(tmp_path))
    assert view is not None
    assert (view.step, view.snapshots, view.scope) == (20, 3, "3 parameters.")
    assert [row.name for row in view.rows] == [f"layer.{HOSTILE}", "layer.b", "layer.a"]
    last = view.rows[-1]
    assert last.shape == "4 × 4"
    assert (last.grad.shown, last.grad.sorted) == ("1", "1.0")
    assert (last.update.shown, last.note) == ("0.0125", "")


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.render.html.parameters.MOST_ROWS", 2)
    view = params_view(hostile_run(tmp_path))
    assert view is not None
    assert view.scope == "2 of 3 parameters, the largest gradients."
    assert len(view.rows) == 2


def test_the_first_bad_one_is_told_above_and_in_its_row(tmp_path: Path) -> None:
    view = params_view(hostile_run(tmp_path))
    assert view is not None
    assert view.sentences[0].startswith("First non-finite: the gradient of layer.")
    assert "at step 40, 1 of 3 parameters bad in that step" in view.sentences[0]
    assert view.rows[0].note == "first non-finite, at 40"
