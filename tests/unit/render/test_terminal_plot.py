"""Charts in a terminal."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.chart_series import charts_of
from forensics.errors import MissingExtraError
from forensics.render.output import Look
from forensics.render.terminal_plot import check_terminal_plots, render_terminal
from tests.unit.diagnose.step_logs import NAN, calm, run_of, with_values

pytest.importorskip("plotext", reason="needs plotext")


def drawn(look: Look, **columns) -> str:
    series = charts_of(run_of(calm(100, **columns)))
    return render_terminal([("", series)], ("loss", "norm"), look)


def test_it_fits_its_width_and_says_what_is_not_finite() -> None:
    text = drawn(Look(width=70), loss=with_values(np.full(100, 2.0), [30, 31], NAN))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 70
    assert "  NaN in 2 rows (!), steps 30 to 31" in lines
    assert any("!" in line for line in lines[:12])
    assert "loss" in lines[0]
    assert any("gradient norm (L2)" in line for line in lines)
    assert "\x1b" not in text


def test_a_spike_reaches_the_top() -> None:
    text = drawn(Look(width=70), loss=with_values(np.linspace(2, 1, 100), 50, 9.0))
    body = text.splitlines()[2:10]
    assert 30 <= len(body[0].rstrip("│ ")) <= 45


def test_colour_and_ascii_are_as_the_terminal_has_them() -> None:
    assert "\x1b[" in drawn(Look(colour=True))
    assert drawn(Look(ascii_only=True)).isascii()


def test_two_runs_share_a_chart() -> None:
    series = [charts_of(run_of(calm(50, loss=np.full(50, v)))) for v in (1.0, 2.0)]
    text = render_terminal([*zip("AB", series, strict=True)], ("loss",), Look())
    assert " A" in text
    assert " B" in text


@pytest.mark.parametrize("look", [Look(), Look(ascii_only=True)], ids=["dots", "ascii"])
def test_without_colour_each_run_has_a_sign_of_its_own(look: Look) -> None:
    series = [charts_of(run_of(calm(50, loss=np.full(50, v)))) for v in (1.0, 2.0)]
    text = render_terminal([*zip("AB", series, strict=True)], ("loss",), look)
    signs = {name: text.split(f" {name} ")[0][-2:] for name in "AB"}
    assert signs["A"] != signs["B"]
    assert text.count("+") > 40  # the line of B, not its entry in the legend alone


@pytest.mark.parametrize("rows", [1, 2])
def test_very_few_rows_are_drawn(rows: int) -> None:
    text = render_terminal([("", charts_of(run_of(calm(rows))))], ("loss",), Look())
    assert "loss" in text


def test_all_nan_is_drawn_as_such() -> None:
    assert "NaN in 100 rows" in drawn(Look(), loss=np.full(100, NAN))


def test_hostile_reasons_are_written_out() -> None:
    skipped = with_values(np.zeros(40, dtype=bool), 3, True)
    reason = ["\x1b[2J\nboo" if s else "" for s in skipped]
    columns = calm(40, skipped=skipped, skip_reason=reason, scaler_scale=np.full(40, 8.0))
    text = render_terminal([("", charts_of(run_of(columns)))], ("scale",), Look())
    assert "\\x1b[2J\\nboo 1" in text


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.render.terminal_plot.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="not installed; pip install 'plotext<6'"):
        check_terminal_plots("plot")


@pytest.mark.parametrize(("version", "fits"), [("5.3.2", True), ("6.1.0", False), ("10.0", False)])
def test_a_version_that_draws_otherwise_is_refused(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    if fits:
        check_terminal_plots("plot")
        return
    with pytest.raises(MissingExtraError, match=f"version {version} is installed"):
        check_terminal_plots("plot")
