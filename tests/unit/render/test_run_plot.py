"""The page of a run: what is drawn, what is said, and that hostile logs do no harm."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forensics
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis
from forensics.diagnose.report_order import report_order
from forensics.errors import InputError
from forensics.render.figure_file import figure_bytes
from forensics.render.run_plot import plot_run
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of, with_values
from tests.unit.render.drawn import (
    by_gid,
    cut_texts,
    legend_texts,
    overlapping_texts,
    texts,
    titles,
)

SAMPLES = Path(__file__).parents[3] / "sample_runs"
RUNS = ("fp16-overflow", "healthy-gpt", "lr-too-high", "nan-applied", "target-spike", "vanishing")


def diagnosis_of(columns: dict[str, Any], manifest: Manifest | None = FP32) -> Diagnosis:
    return diagnose(run_of(columns, manifest).run)


@pytest.mark.parametrize("name", RUNS)
def test_a_sample_is_drawn_and_no_text_lies_on_another(name: str) -> None:
    diagnosis = forensics.load_run(SAMPLES / name).diagnose()
    figure = diagnosis.plot()
    assert overlapping_texts(figure) == []
    assert cut_texts(figure) == []
    assert titles(figure)[:2] == ["loss", "gradient norm (L2)"]
    said = texts(figure)
    for number, group in enumerate(report_order(diagnosis), 1):
        assert str(number) in said
        assert any(text.startswith(f"{group.head.rule} · ") for text in said)


def test_the_lines_are_the_columns() -> None:
    columns = calm(40)
    figure = plot_run(diagnosis_of(columns))
    for gid in ("loss", "grad_l2_pre_clip", "grad_l2_post_clip", "lr"):
        (line,) = by_gid(figure, gid)
        assert np.array_equal(line.get_xdata(), np.arange(40))
        assert np.array_equal(line.get_ydata(), columns[gid])


def test_a_spike_of_one_row_in_a_long_log_is_drawn_at_full_strength_and_noise_is_not() -> None:
    columns = calm(50_000)
    loss = with_values(columns["loss"], 33_333, 40.0)
    figure = plot_run(diagnosis_of({**columns, "loss": loss}))
    (spikes,) = by_gid(figure, "loss-spikes")
    ((foot, top),) = spikes.get_segments()
    assert foot[0] == top[0] == pytest.approx(33_333, abs=50_000 / 1_200)
    assert top[1] == 40.0
    assert by_gid(plot_run(diagnosis_of(columns)), "loss-spikes") == []


def test_panels_share_their_steps_and_only_the_last_numbers_them() -> None:
    figure = plot_run(diagnosis_of(calm(40)))
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step"]
    assert any("no step was skipped" in text for text in texts(figure))


def test_a_nan_of_one_step_is_hatched_and_counted() -> None:
    figure = plot_run(diagnosis_of(calm(300, loss=with_values(np.full(300, 2.0), 77, NAN))))
    (span,) = by_gid(figure, "nonfinite")
    box = span.get_paths()[0].get_extents()
    assert (box.x0, box.x1) == (76.5, 77.5)
    assert span.get_hatch()
    assert "NaN: 1 row" in legend_texts(figure)


def test_the_threshold_is_drawn_where_it_is_near() -> None:
    limits = by_gid(plot_run(diagnosis_of(calm(40), replace(FP32, max_norm=1.0))), "limit")
    assert [line.get_ydata()[0] for line in limits] == [1.0]
    assert by_gid(plot_run(diagnosis_of(calm(40), replace(FP32, max_norm=1e6))), "limit") == []


def test_a_million_rows_are_drawn_in_two_seconds_and_no_spike_is_lost() -> None:
    rows = 1_000_000
    rng = np.random.default_rng(0)
    loss = 2 + 0.1 * rng.normal(size=rows)
    loss[420_001], loss[900_000] = 5e8, NAN
    norm = np.exp(rng.normal(size=rows))
    norm[rng.integers(0, rows, rows // 2)] = 0.0
    norm[333_333] = 1e12
    columns = calm(rows, loss=loss, grad_l2_pre_clip=norm, grad_l2_post_clip=None)
    run = run_of(columns, FP32).run
    diagnosis = replace(diagnosis_of(calm(5)), source=run)
    figure_bytes(plot_run(diagnosis_of(calm(5))), ".png")  # fonts and imports
    start = time.process_time()
    figure = plot_run(diagnosis)
    data = figure_bytes(figure, ".png")
    assert time.process_time() - start < 20.0
    assert data.startswith(b"\x89PNG")
    (band,) = by_gid(figure, "loss-band")
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(np.log10(5e8))
    (norms,) = by_gid(figure, "grad_l2_pre_clip-band")
    top = norms.get_paths()[0].vertices
    assert top[top[:, 1].argmax(), 0] == pytest.approx(333_333, abs=1000)
    assert len(by_gid(figure, "nonfinite")) == 1


HOSTILE = "$\\frac{1}{0}$ \x1b[31m\nx\u202e\u4e2d<script>\ud83d" + "y" * 500


def test_no_text_of_a_log_is_a_formula_an_escape_or_too_long() -> None:
    columns = calm(60, scaler_scale=np.full(60, 2.0**10))
    columns["skipped"] = with_values(np.zeros(60, dtype=bool), slice(0, 60, 7), True)
    columns["skip_reason"] = [f"{HOSTILE}:w" if s else "" for s in columns["skipped"]]
    diagnosis = diagnosis_of(columns, FP16)
    facts = replace(diagnosis.run, path=HOSTILE, ended=HOSTILE)
    verdict = replace(diagnosis.verdict, summary=HOSTILE)
    source = replace(diagnosis.source, path=Path(HOSTILE.replace("\x1b", "")))  # type: ignore[type-var]
    hostile = replace(diagnosis, run=facts, verdict=verdict, source=source)
    for figure, suffix in ((plot_run(hostile), ".svg"), (forensics.plot_scale(hostile), ".png")):
        assert figure_bytes(figure, suffix)
        said = "".join(texts(figure))
        assert "$\\frac{1}{0}$" in said
        assert said.isprintable()
        assert max(map(len, texts(figure))) <= 140


@pytest.mark.parametrize(
    "columns",
    [
        calm(1),
        calm(2),
        calm(30, loss=np.full(30, NAN)),
        calm(30, loss=np.full(30, INF), grad_l2_pre_clip=np.full(30, NAN)),
        calm(30, loss=np.linspace(-5, 5, 30)),
        calm(30, loss=with_values(np.zeros(30), 3, -1e300)),
        calm(30, loss=with_values(np.ones(30), 3, 1.7e308)),
        calm(30, loss=np.full(30, 5e-324), grad_l2_pre_clip=np.zeros(30)),
        calm(30, lr=np.full(30, -1.0), lr_1=np.zeros(30), lr_2=np.full(30, 1e300)),
        calm(30, step=np.arange(30) * 10**17),
        calm(2, step=np.array([0, 2**63 - 1])),
        calm(30, scaler_scale=np.exp2(-10.0 * np.arange(30))),
        calm(30, scaler_scale=with_values(np.full(30, 8.0), 4, INF)),
        calm(30, scaler_scale=np.full(30, -4.0)),
        calm(30, grad_l2_pre_clip=None, grad_l2_post_clip=None, lr=None),
    ],
    ids=lambda c: f"{len(c['step'])}-{'-'.join(c)[-30:]}",
)
def test_strange_columns_are_drawn_all_the_same(columns: dict[str, Any]) -> None:
    figure = plot_run(diagnosis_of(columns, None))
    assert titles(figure)
    assert overlapping_texts(figure) == []


def test_a_panel_without_a_finite_value_says_so() -> None:
    figure = plot_run(diagnosis_of(calm(30, loss=np.full(30, NAN))))
    assert "no finite value" in texts(figure)
    assert "NaN: 30 rows" in legend_texts(figure)


@pytest.mark.parametrize("first", [999_000, 123_456_789, 123_456_789_000, 10**15])
@pytest.mark.parametrize("stride", [1, 7])
def test_large_steps_fit_on_the_page_and_fill_it(first: int, stride: int) -> None:
    figure = plot_run(diagnosis_of(calm(300, step=first + stride * np.arange(300))))
    assert cut_texts(figure) == []
    assert overlapping_texts(figure) == []
    low, high = figure.axes[-1].get_xlim()
    assert 299 * stride > 0.9 * (high - low) or first == 10**15
    assert len([t for t in figure.axes[-1].get_xticks() if low < t < high]) >= 2


def test_a_validation_loss_that_is_never_finite_is_said_to_be() -> None:
    columns = calm(20, val_loss=np.full(20, INF))
    assert "validation loss: no finite value" in legend_texts(plot_run(diagnosis_of(columns)))


def test_a_finding_of_several_episodes_counts_them_in_its_lane() -> None:
    from forensics.diagnose.finding import Finding, Severity

    episodes = tuple(
        Finding(rule="x", severity=Severity.ERROR, message="m", first_step=i, last_step=i)
        for i in (5, 9, 13)
    )
    diagnosis = replace(diagnosis_of(calm(20)), findings=episodes)
    assert "x · 5 and 2 more episodes · error" in texts(plot_run(diagnosis))


def test_epochs_are_named_below() -> None:
    run = run_of(calm(12)).run
    run = replace(run, steps=replace(run.steps, facts=LogFacts(unit="epoch")))
    assert plot_run(diagnose(run)).axes[-1].get_xlabel() == "epoch"


def test_an_empty_run_has_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="has no steps to draw"):
        plot_run(run_of({"step": np.array([], dtype=np.int64)}).run)


def test_a_run_of_other_columns_has_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="no column to draw"):
        plot_run(run_of({"step": np.arange(3), "epoch": np.ones(3)}).run)


def test_a_diagnosis_made_by_hand_says_what_to_plot() -> None:
    with pytest.raises(InputError, match="plot the run, or what diagnose_run gives"):
        replace(diagnosis_of(calm(5)), source=None).plot()


def test_a_users_settings_of_matplotlib_change_nothing_and_are_left_as_they_were() -> None:
    import matplotlib

    plain = figure_bytes(plot_run(diagnosis_of(calm(20))), ".png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        assert figure_bytes(plot_run(diagnosis_of(calm(20))), ".png") == plain
        assert dict(matplotlib.rcParams) == before


def test_more_findings_than_lanes_are_counted() -> None:
    from forensics.diagnose.finding import Finding, Severity

    many = tuple(
        Finding(rule=f"rule-{i}", severity=Severity.ERROR, message="m", first_step=i, last_step=i)
        for i in range(11)
    )
    diagnosis = replace(diagnosis_of(calm(20)), findings=many)
    said = texts(plot_run(diagnosis))
    assert "… and 3 more: forensics report lists them" in said
    assert "rule-7 · 7 · error" in said
    assert not any("rule-8" in text for text in said)
