"""The heat map of the parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forensics
from forensics.diagnose.param_map import param_map
from forensics.errors import InputError
from forensics.render.output import Look
from forensics.render.params_plot import plot_params
from forensics.render.terminal_map import render_terminal_map
from forensics.runlog.params import ParamStore, ParamWriter
from forensics.runlog.run import Run
from tests.unit.diagnose.step_logs import calm, run_of
from tests.unit.render.drawn import by_gid, legend_texts, overlapping_texts, texts

SAMPLES = Path(__file__).parents[3] / "sample_runs"


def run_with(folder: Path, names: list[str], norms: dict[int, list[float]]) -> Run:
    """A run whose snapshots hold these gradient norms, a list a step."""
    with ParamWriter(folder) as writer:
        for step, values in norms.items():
            bad = [int(not np.isfinite(v)) for v in values]
            stats = {"grad_l2": values, "grad_nonfinite": bad, "value_l2": [1.0] * len(names)}
            writer.append(step, names, "param", stats)
    return run_of(calm(max(norms) + 1), params=ParamStore(folder)).run


def test_cells_are_logarithms_in_network_order_and_what_is_not_finite_is_crossed_out(
    tmp_path: Path,
) -> None:
    names = ["z.weight", "a.weight"]
    run = run_with(tmp_path, names, {0: [1.0, 100.0], 10: [10.0, 1.0], 20: [1.0, np.nan]})
    figure = plot_params(run)
    (image,) = by_gid(figure, "norms")
    cells = image.get_array()
    assert cells.shape[0] == 2
    first, second = cells[:, 0], cells[:, cells.shape[1] // 2]
    assert (first.tolist(), second.tolist()) == ([0.0, 2.0], [1.0, 0.0])
    assert np.ma.getmaskarray(cells)[1, -1]
    (bars,) = by_gid(figure, "nonfinite")
    box = bars.get_paths()[0].get_extents()
    assert box.x0 == pytest.approx(20, abs=0.1)
    assert box.x1 == 30
    assert (box.y0, box.y1) == (0.5, 1.5)
    assert bars.get_hatch()
    assert {*names} <= {*texts(figure)}
    assert overlapping_texts(figure) == []


def test_the_first_to_move_and_the_first_to_go_bad_are_marked(tmp_path: Path) -> None:
    names = [f"blocks.{i}.weight" for i in range(8)]
    norms = {step: [1.0] * 8 for step in range(0, 200, 10)}
    for step in range(150, 200, 10):
        norms[step] = [1.0] * 3 + [40.0] + [1.0] * 4
    norms[200] = [1.0] * 3 + [np.inf] + [1.0] * 4
    figure = plot_params(run_with(tmp_path, names, norms))
    (star,) = by_gid(figure, "first to move")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (150, 3)
    (diamond,) = by_gid(figure, "first not finite")
    assert (diamond.get_xdata()[0], diamond.get_ydata()[0]) == (200, 3)
    assert any(text.startswith("★ first to move: blocks.3.weight") for text in texts(figure))
    assert {"first to move", "first not finite", "not finite"} <= {*legend_texts(figure)}


def test_a_bad_snapshot_among_many_in_one_column_is_kept(tmp_path: Path) -> None:
    names = ["a.weight"]
    norms = {step: [1.0] for step in range(0, 3000, 2)}
    norms[1501] = [np.nan]
    found = param_map(run_with(tmp_path, names, norms))
    assert found.norms.shape == (1, 600)
    assert found.nonfinite.sum() == 1
    column = int(np.flatnonzero(found.nonfinite[0])[0])
    assert found.edges[column] <= 1501 < found.edges[column + 1]


@pytest.mark.parametrize("count", [1, 120, 2000])
def test_any_number_of_parameters_fits_on_a_page(tmp_path: Path, count: int) -> None:
    names = [f"blocks.{i // 12}.part{i % 12}.weight" for i in range(count)]
    norms = {step: list(np.geomspace(1e-6, 1e3, count)) for step in (0, 5)}
    norms[5][count // 2] = np.inf
    figure = plot_params(run_with(tmp_path, names, norms))
    assert figure.get_figheight() < 10
    assert len(by_gid(figure, "nonfinite")) == 1
    assert overlapping_texts(figure) == []


def test_gradients_of_zero_are_drawn_and_told_from_none(tmp_path: Path) -> None:
    figure = plot_params(run_with(tmp_path, ["a", "b"], {0: [0.0, 0.0]}))
    (image,) = by_gid(figure, "norms")
    assert not np.ma.getmaskarray(image.get_array()).any()
    assert "2 parameters in network order, 1 snapshot; darkest where the gradient is 0" in texts(
        figure
    )


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    name = "$\\alpha$\x1b[2J\n" + "w" * 300
    figure = plot_params(run_with(tmp_path, [name, "b"], {0: [1.0, 2.0], 1: [np.nan, 0.0]}))
    assert overlapping_texts(figure) == []
    assert "".join(texts(figure)).isprintable()


def test_a_sample_run_is_drawn_and_a_run_without_snapshots_is_not() -> None:
    figure = plot_params(forensics.load_run(SAMPLES / "vanishing"))
    assert by_gid(figure, "norms")[0].get_array().shape[0] == 26
    with pytest.raises(InputError, match="no per-parameter snapshots"):
        plot_params(run_of(calm(5)).run)


def test_the_map_in_a_terminal_marks_what_is_not_finite(tmp_path: Path) -> None:
    names = ["z.weight", "a\x1b[31m.weight"]
    run = run_with(tmp_path, names, {0: [1.0, 100.0], 10: [10.0, np.nan]})
    text = render_terminal_map(param_map(run), Look(width=60, ascii_only=True))
    first, second, *_ = text.splitlines()
    assert first.startswith("z.weight ")
    assert first[31:].strip(" .:+#") == ""
    assert second.endswith("!!!!!!!!")
    assert "\x1b" not in text
    assert text.isascii()
    assert "! not finite" in text
