"""Two runs over each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import InputError
from forensics.render.compare_plot import plot_compare
from forensics.runlog.run import Run
from tests.unit.diagnose.step_logs import FP32, NAN, calm, run_of, with_values
from tests.unit.render.drawn import by_gid, legend_texts, overlapping_texts, texts, titles


def run(name: str = "runs/a", **columns) -> Run:
    return replace(run_of(calm(60, **columns), FP32).run, path=Path(name))


def test_they_part_where_the_first_column_does() -> None:
    loss = calm(60)["loss"]
    later = with_values(loss, slice(40, None), loss[40:] * 1.5)
    slightly = with_values(later, slice(30, 40), loss[30:40] * 1.0001)
    figure = plot_compare(run(), run("runs/b", loss=slightly))
    marks = by_gid(figure, "part")
    assert {line.get_xdata()[0] for line in marks} == {30, 40}
    assert {"A", "B", "part at 30", "by more than 1 % at 40"} <= {*legend_texts(figure)}
    first, second = by_gid(figure, "loss")
    assert np.array_equal(first.get_ydata(), loss)
    assert np.array_equal(second.get_ydata(), slightly)
    assert {"A: runs/a", "B: runs/b"} <= {*texts(figure)}
    assert overlapping_texts(figure) == []


def test_the_same_runs_part_nowhere() -> None:
    figure = plot_compare(run(), run("runs/b"))
    assert by_gid(figure, "part") == []
    assert any("same to the last bit" in text for text in texts(figure))


def test_one_that_blows_up_and_one_that_goes_below_zero_share_an_axis() -> None:
    wild = np.geomspace(1e-3, 1e9, 60)
    figure = plot_compare(run(loss=wild), run(loss=with_values(np.linspace(-1, 1, 60), 5, NAN)))
    assert titles(figure)[0] == "loss"
    first, second = by_gid(figure, "loss")
    assert np.isfinite(first.get_ydata()).all()
    assert np.isfinite(second.get_ydata()).sum() == 59
    assert "B NaN: 1 row" in legend_texts(figure)
    assert overlapping_texts(figure) == []


def test_runs_without_a_step_in_common_are_refused() -> None:
    with pytest.raises(InputError, match="no step in common"):
        plot_compare(run(), run(step=np.arange(100, 160)))


def test_runs_without_a_chart_in_common_are_refused() -> None:
    other = run_of({"step": np.arange(60), "epoch": np.ones(60)}).run
    with pytest.raises(InputError, match="no column to draw in common"):
        plot_compare(other, other)
