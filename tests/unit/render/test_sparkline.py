"""Sparklines: what is bad is seen, what is noise is left out, and every line keeps its width."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.chart_axis import Axis, Layout, axis_of
from forensics.diagnose.excerpts import Excerpt, excerpts_of
from forensics.diagnose.finding import Finding, Severity
from forensics.render.page import Page
from forensics.render.safe_text import display_width
from forensics.render.sparkline import BLOCKS, blocks, put_sparklines, shows
from tests.unit.diagnose.step_logs import FP32, calm, run_of

NAN = float("nan")
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def excerpt(
    values: list[float],
    begin: int,
    end: int,
    *,
    column: str = "loss",
    first: int = 0,
    bad: tuple[int, ...] = (),
    axis: Axis | None = None,
) -> Excerpt:
    low = np.array(values, dtype=float)
    marked = np.zeros(len(low), dtype=bool)
    marked[list(bad)] = True
    return Excerpt(
        column=column,
        unit="step",
        first_step=first,
        last_step=first + len(low) - 1,
        low=low,
        high=low,
        bad=marked,
        begin=begin,
        end=end,
        axis=axis or axis_of([low]),
    )


def finding(*excerpts: Excerpt, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        rule="x", severity=severity, message="", first_step=0, last_step=0, excerpts=excerpts
    )


def drawn(
    *excerpts: Excerpt, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> list[str]:
    page = Page(width, colour=colour, ascii_only=ascii_only)
    put_sparklines(page, finding(*excerpts), indent=20, told=set())
    return page.text().splitlines() if page.text().strip() else []


STEP = [1.0] * 10 + [8.0] * 10


def test_the_finding_stands_between_bars() -> None:
    values = [1.0] * 5 + [8.0] + [1.0] * 5
    (line,) = drawn(excerpt(values, 5, 6, first=1_200))
    assert line == "          loss      ▁▁▁▁▁│█│▁▁▁▁▁  1 to 8, steps 1,200–1,210"


def test_a_finding_to_the_end_of_the_log_is_not_closed() -> None:
    (line,) = drawn(excerpt(STEP, 10, 20))
    assert "▁▁▁▁▁▁▁▁▁▁│██████████  1 to 8" in line


def test_a_finding_of_the_whole_run_has_no_bars() -> None:
    (line,) = drawn(excerpt(STEP, 0, 20))
    assert "│" not in line


def test_what_is_not_finite_is_marked_in_blocks_and_in_ascii() -> None:
    course = excerpt([2.0, 1.0, NAN, 2.0], 2, 3, bad=(2,))
    assert "█▁│!│█" in drawn(course)[0]
    (line,) = drawn(course, ascii_only=True)
    assert "#_|!|#" in line
    assert line.isascii()


def test_nothing_but_nan_is_told() -> None:
    (line,) = drawn(excerpt([NAN] * 4, 0, 4, bad=(0, 1, 2, 3)))
    assert "!!!!  no finite value" in line


def test_a_single_finite_value_is_not_called_the_value_throughout() -> None:
    (line,) = drawn(excerpt([2.0, NAN, NAN], 0, 3, bad=(1, 2)))
    assert "▄!!  2 where finite, steps 0–2" in line


def test_a_gap_is_blank_and_not_bad() -> None:
    (line,) = drawn(excerpt([1.0, 2.0, NAN, NAN, 2.0, 1.0, NAN], 2, 4, bad=(6,)))
    assert "▁█│  │█▁!" in line


@pytest.mark.parametrize("bad", [0, 499])
def test_one_bad_row_of_many_is_seen(bad: int) -> None:
    values = np.ones(500).tolist()
    cells, _ = blocks(excerpt(values, 0, 500, bad=(bad,)), 30)
    assert cells.count("!") == 1


@pytest.mark.parametrize(("spike", "level"), [(50.0, "7"), (-50.0, "0")])
def test_a_spike_of_one_place_is_seen_up_or_down(spike: float, level: str) -> None:
    values = np.linspace(1, 2, 128)
    values[77] = spike
    cells, _ = blocks(excerpt(values.tolist(), 0, 128, axis=Axis(Layout.LINEAR)), 30)
    assert cells.count(level) == 1
    assert cells[77 * 30 // 128] == level


def test_values_over_decades_stand_on_a_logarithmic_axis_that_is_named() -> None:
    (line,) = drawn(excerpt([10.0**k for k in range(16)], 0, 16))
    assert "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██  1 to 1e15 (log), steps 0–15" in line


def test_a_scale_of_zero_is_the_lowest_block() -> None:
    values = [65_536.0, 256.0, 1.0, 0.0, 0.0]
    (line,) = drawn(excerpt(values, 1, 5, column="scaler_scale", axis=Axis(Layout.LOG2)))
    assert "scale     █│▅▁▁▁  0 to 65,536 (log)" in line


@pytest.mark.parametrize("rows", [5, 21, 128])
@pytest.mark.parametrize("seed", range(5))
def test_noise_is_not_drawn(rows: int, seed: int) -> None:
    values = 2 + 0.2 * np.random.default_rng(seed).uniform(-1, 1, size=rows)
    assert drawn(excerpt(values.tolist(), 3, 4)) == []


def test_noise_of_many_rows_a_place_is_not_drawn_and_a_trend_in_it_is() -> None:
    noise = np.random.default_rng(0).normal(size=(128, 50))

    def gathered(values: np.ndarray) -> Excerpt:
        plain = excerpt(values.min(axis=1).tolist(), 0, 128, axis=Axis(Layout.LINEAR))
        return replace(plain, high=values.max(axis=1))

    assert not shows(gathered(2 + 0.2 * noise))
    assert shows(gathered(2 + 0.2 * noise + np.linspace(0, 4, 128)[:, None]))


def test_a_series_that_begins_to_swing_is_drawn() -> None:
    noise = 0.2 * np.random.default_rng(3).uniform(-1, 1, size=40)
    swings = np.where(np.arange(40) < 20, noise, 5 * noise)
    assert not shows(excerpt((2 + noise).tolist(), 20, 40))
    assert shows(excerpt((2 + swings).tolist(), 20, 40))


def test_a_change_of_a_few_percent_is_not_drawn() -> None:
    assert drawn(excerpt([2.0] * 10 + [2.1] * 10, 10, 20)) == []
    assert drawn(excerpt([2.0] * 10 + [2.4] * 10, 10, 20)) != []


def test_lines_of_one_finding_have_the_same_steps_below_each_other() -> None:
    norm = [value * 1e7 for value in STEP]
    lines = drawn(excerpt(STEP, 10, 20), excerpt(norm, 10, 20, column="grad_l2_pre_clip"))
    assert [line.index("│") for line in lines] == [30, 30]
    assert [line[10:14] for line in lines] == ["loss", "norm"]


def test_a_line_that_stands_there_already_is_not_repeated() -> None:
    page, told = Page(), set[str]()
    for _ in range(2):
        put_sparklines(page, finding(excerpt(STEP, 10, 20)), indent=20, told=told)
    assert page.text().count("loss") == 1


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100])
@pytest.mark.parametrize("size", [1.0, 1e300])
def test_no_line_is_wider_than_the_page(width: int, size: float) -> None:
    values = (np.geomspace(1e-9, 1, 128) * size).tolist()
    lines = drawn(excerpt(values, 40, 90, first=123_456_789), width=width)
    assert all(display_width(line) <= width for line in lines)
    assert lines or width < 80


ANY = st.one_of(
    st.floats(-1e3, 1e3),
    st.sampled_from([NAN, float("inf"), -float("inf"), 0.0, 1e308, -1e308, 5e-324]),
)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_log_is_drawn_within_the_page_and_shows_what_is_bad(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 300))
    values = np.array(data.draw(st.lists(ANY, min_size=rows, max_size=rows)))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, rows - 1)] * 2)))
    width = data.draw(st.integers(40, 100))
    one = Finding(rule="x", severity=Severity.INFO, message="", first_step=first, last_step=last)
    signals = run_of(calm(rows, loss=values, grad_l2_pre_clip=np.abs(values)), FP32)
    found = replace(one, excerpts=tuple(excerpts_of(signals, one)))
    page = Page(width, ascii_only=True)
    put_sparklines(page, found, indent=20, told=set())
    lines = page.text().splitlines()
    assert all(len(line) <= width and line.isascii() for line in lines)
    if width >= 80 and not np.isfinite(values[first : last + 1]).all():
        assert any("!" in line for line in lines)


def test_colour_says_the_same_and_paints_the_finding_by_severity_and_the_bad_in_red() -> None:
    course = excerpt([*STEP[:-1], NAN], 10, 19, bad=(19,))
    (plain,), (coloured,) = drawn(course), drawn(course, colour=True)
    assert STYLE.sub("", coloured) == plain
    assert "▁│\x1b[31m█████████\x1b[0m│\x1b[1;31m!\x1b[0m" in coloured


def test_every_height_has_its_block() -> None:
    (line,) = drawn(excerpt([float(k) for k in range(8)], 0, 8))
    assert BLOCKS in line
