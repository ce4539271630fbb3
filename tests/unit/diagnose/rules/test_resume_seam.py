"""resume-seam: what did not go on where a run was taken up again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.resume_seam import resume_seam
from forensics.runlog.manifest import Manifest, Segment
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.snapshot_runs import found, signals_of

ROWS, SEAM = 1000, 600
STEP = np.arange(ROWS)
RESUMED = Manifest(segments=(Segment(), Segment(start_step=SEAM, reason="resume")))


def log(seed: int = 0, **columns: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "step": STEP,
        "lr": 1e-3 * 0.5 * (1 + np.cos(np.pi * STEP / ROWS)) + 1e-5,
        "loss": 2 + 2 * np.exp(-STEP / 200) + 0.05 * rng.normal(size=ROWS),
        "scaler_scale": np.full(ROWS, 65536.0),
        "skipped": np.zeros(ROWS),
        **columns,
    }


def judge(
    columns: dict[str, Any], manifest: Manifest | None = RESUMED, **more: Any
) -> list[Finding]:
    return found(resume_seam, signals_of(columns=columns, manifest=manifest, **more))


def without(columns: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    kept = (columns["step"] < first) | (columns["step"] > last)
    return {name: np.asarray(values)[kept] for name, values in columns.items()}


def test_fires_on_a_rate_that_starts_again() -> None:
    columns = log()
    columns["lr"] = np.where(STEP < SEAM, columns["lr"], np.roll(columns["lr"], SEAM))
    (finding,) = judge(columns)
    assert finding.severity is Severity.WARNING
    assert finding.first_step == SEAM
    assert "where the schedule began" in finding.message
    assert "scheduler" in finding.cause
    assert SEAM in finding.evidence[0].steps


def test_fires_on_a_scale_that_starts_again() -> None:
    scale = np.where((STEP >= 300) & (STEP < SEAM), 1024.0, 65536.0)
    skipped = np.zeros(ROWS)
    skipped[294:300] = 1
    (finding,) = judge(log(scaler_scale=scale, skipped=skipped))
    assert "its initial value" in finding.message
    assert finding.severity is Severity.WARNING


def test_fires_on_a_loss_that_spikes_after_it() -> None:
    columns = log()
    columns["loss"] = columns["loss"] + np.where(STEP >= SEAM, 2 * np.exp((SEAM - STEP) / 20), 0)
    (finding,) = judge(columns)
    assert "loss rises" in finding.message
    assert "optimizer" in finding.cause


def test_fires_as_info_on_a_loss_below_its_trend() -> None:
    columns = log()
    columns["loss"] = columns["loss"] - np.where(STEP >= SEAM, 0.5, 0)
    (finding,) = judge(columns)
    assert finding.severity is Severity.INFO
    assert "trend" in finding.message


def test_fires_on_a_hole_without_a_manifest() -> None:
    (finding,) = judge(without(log(), 400, 449), None)
    assert finding.severity is Severity.WARNING
    assert finding.first_step == 450
    assert "between steps 399 and 450" in finding.message


def test_fires_where_the_clock_is_set_back() -> None:
    columns = log(time_s=np.where(STEP < SEAM, STEP, STEP - SEAM) * 0.5)
    columns["lr"] = np.where(STEP < SEAM, columns["lr"], 1e-3)
    (finding,) = judge(columns, None)
    assert finding.first_step == SEAM


def test_fires_as_info_on_steps_done_again() -> None:
    replaced = StepTable.from_arrays({"step": np.arange(500, 550), "loss": np.ones(50)})
    (finding,) = judge(log(), None, earlier=[replaced])
    assert finding.severity is Severity.INFO
    assert finding.first_step == 500
    assert "50 rows" in finding.message


@pytest.mark.parametrize(("start", "severity"), [(2.0, Severity.WARNING), (6.0, Severity.INFO)])
def test_fires_on_a_counter_that_starts_again(start: float, severity: Severity) -> None:
    falling = np.linspace(6, 2, 300)
    earlier = StepTable.from_arrays({"step": np.arange(300), "loss": falling})
    columns = {"step": np.arange(200), "loss": np.linspace(start, 1.5, 200)}
    (finding,) = judge(columns, None, earlier=[earlier])
    assert finding.severity is severity
    assert finding.first_step == 0


@pytest.mark.parametrize("seed", range(10))
def test_silent_on_a_clean_resume(seed: int) -> None:
    assert not judge(log(seed))


def test_silent_on_a_resume_during_fast_decay_and_warmup() -> None:
    early = Manifest(segments=(Segment(), Segment(start_step=20, reason="resume")))
    columns = log(lr=np.minimum(STEP + 1, 100) / 100 * 1e-3)
    columns["loss"] = 2 + 8 * np.exp(-STEP / 30)
    assert not judge(columns, early)


def test_silent_on_a_routine_halving_at_the_seam() -> None:
    skipped = np.zeros(ROWS)
    skipped[SEAM - 1] = 1
    scale = np.where(STEP < SEAM, 65536.0, 32768.0)
    assert not judge(log(scaler_scale=scale, skipped=skipped))


def test_silent_on_logs_without_a_stride_and_with_a_habit() -> None:
    rng = np.random.default_rng(0)
    sampled = np.sort(rng.choice(100_000, ROWS, replace=False))
    assert not judge(log(step=sampled), None)
    columns = log()
    keep = STEP % 100 != 50
    assert not judge({name: np.asarray(v)[keep] for name, v in columns.items()}, None)


def test_silent_on_jumps_away_from_a_seam() -> None:
    columns = log()
    columns["lr"] = np.where(STEP < 300, 1e-3, 1e-4)
    columns["loss"] = columns["loss"] + np.where(STEP == 400, 5, 0)
    assert not judge(columns)


CELL = st.sampled_from([0.0, 1.0, -1.0, 2.0, 1e300, np.nan, np.inf, -np.inf])


def cells_of(data: st.DataObject) -> list[float]:
    return data.draw(st.lists(CELL, min_size=2, max_size=2))


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_log_is_read_without_an_exception(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=40))
    cells = st.lists(CELL, min_size=len(gaps), max_size=len(gaps))
    columns = {"step": np.cumsum(gaps)}
    for name in ("loss", "lr", "scaler_scale", "time_s"):
        columns[name] = np.array(data.draw(cells))
    at = data.draw(st.integers(-1, 100))
    manifest = Manifest(segments=(Segment(start_step=at, reason="resume"),))
    replaced = StepTable.from_arrays({"step": [max(at, 0), max(at, 0) + 1], "loss": cells_of(data)})
    signals = signals_of(columns=columns, manifest=manifest, earlier=[replaced])
    for finding in found(resume_seam, signals):
        assert signals.step[0] <= finding.first_step <= finding.last_step <= signals.step[-1]
        assert finding.message
        assert finding.remedy


def test_silent_on_rows_that_a_full_disk_did_not_take() -> None:
    columns = without(log(), 300, 419)
    lost = "steps.csv: 120 writes failed between steps 300 and 419 (No space left on device)"
    assert judge(columns, Manifest(missing=(lost,))) == []
    elsewhere = lost.replace("300", "700").replace("419", "819")
    (finding,) = judge(columns, Manifest(missing=(elsewhere,)))
    assert finding.first_step == 420
