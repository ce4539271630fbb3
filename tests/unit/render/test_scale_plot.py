"""The scale plot: moves, skips, bands and limits; and why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import forensics
from forensics.diagnose.engine import diagnose
from forensics.errors import InputError
from forensics.render.scale_plot import plot_scale
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.step_logs import FP16, FP32, calm, run_of
from tests.unit.render.drawn import by_gid, legend_texts, overlapping_texts, texts, titles

SAMPLES = Path(__file__).parents[3] / "sample_runs"


def test_a_collapse_is_shaded_as_the_report_sees_it() -> None:
    diagnosis = forensics.load_run(SAMPLES / "fp16-overflow").diagnose()
    figure = plot_scale(diagnosis)
    number = 1 + [f.rule for f in diagnosis.findings].index("loss-scale-collapse")
    (collapse,) = (f for f in diagnosis.findings if f.rule == "loss-scale-collapse")
    spans = by_gid(figure, f"band-{number}")
    assert {(s.get_x(), s.get_x() + s.get_width()) for s in spans} == {
        (collapse.first_step - 0.5, collapse.last_step + 0.5)
    }
    assert "loss-scale-collapse · 9 → end · error · follows" in texts(figure)
    (backoffs,) = by_gid(figure, "backoff")
    (scale,) = by_gid(figure, "scaler_scale")
    assert len(backoffs.get_xdata()) == 16
    assert scale.get_ydata()[0] == 16
    assert scale.get_ydata()[-1] == 0
    assert "skipped, nonfinite_loss: 22 steps" in titles(figure)
    assert len(by_gid(figure, "skip")[0].get_segments()) == 22
    assert overlapping_texts(figure) == []


def test_an_oscillation_has_growths_and_backoffs_and_a_faint_rate() -> None:
    figure = plot_scale(forensics.load_run(SAMPLES / "scaler-oscillation"))
    assert {"growth: 44", "backoff: 50", "2^0: floor"} <= {*legend_texts(figure)}
    assert by_gid(figure, "lr")
    assert any(text.startswith("learning rate, up to") for text in legend_texts(figure))
    assert by_gid(figure, "band-1")
    assert overlapping_texts(figure) == []


def test_far_from_poison_it_is_said_how_far_and_near_it_the_limit_is_drawn() -> None:
    healthy = plot_scale(forensics.load_run(SAMPLES / "healthy-fp16"))
    told = " ".join(texts(healthy))
    assert "floor: 2^0 lies 17 octaves below" in told
    assert "2^-128 lies 145 octaves below: there 1/scale is Inf" in told
    assert by_gid(healthy, "limit") == []
    low, high = healthy.axes[0].get_ylim()
    assert high - low < 7  # the staircase of five octaves has the panel for itself
    scale = np.exp2(16.0 - np.minimum(np.arange(200), 150))
    lost = np.ones(200, dtype=bool)
    run = run_of(calm(200, scaler_scale=scale, skipped=lost), FP16).run
    figure = plot_scale(run)
    heights = [line.get_ydata()[0] for line in by_gid(figure, "limit")]
    assert -128 in heights
    assert "2^-128: 1/scale is Inf" in legend_texts(figure)
    assert not any("octaves below" in text for text in texts(figure))
    assert overlapping_texts(figure) == []


def test_each_reason_has_ticks_of_its_own() -> None:
    skipped = np.zeros(100, dtype=bool)
    skipped[[10, 20, 30, 40]] = True
    reason = [""] * 100
    reason[10], reason[20], reason[30] = "nonfinite_grad:a", "nonfinite_grad:b", "nonfinite_loss"
    columns = calm(100, skipped=skipped, skip_reason=reason, scaler_scale=np.full(100, 2.0**12))
    figure = plot_scale(run_of(columns, FP16).run)
    assert titles(figure)[1:] == [
        "skipped, nonfinite_grad: 2 steps",
        "skipped, no reason logged: 1 step",
        "skipped, nonfinite_loss: 1 step",
    ]


@pytest.mark.parametrize(
    ("columns", "manifest", "why"),
    [
        (calm(9), FP32, "fp32 trains without a loss scaler"),
        (calm(9), replace(FP32, precision="bf16"), "bf16 trains without a loss scaler"),
        (calm(9, scaler_scale=None), None, "none is logged"),
        (calm(9), None, "the scale is 1 throughout"),
        ({"step": np.array([], dtype=np.int64)}, None, "has no steps to draw"),
    ],
)
def test_where_there_is_nothing_to_plot_it_says_why(
    columns: dict, manifest: Manifest | None, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        plot_scale(diagnose(run_of(columns, manifest).run))
