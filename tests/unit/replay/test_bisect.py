"""Bisection as a whole, on a short recording of a known fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from forensics.diagnose.bisection_file import NAME, bisection_of
from forensics.diagnose.bisection_result import BisectStatus, Persistence
from forensics.errors import InputError, UsageError
from forensics.render.bisection_phrases import again
from forensics.replay.bisect import bisect_run
from forensics.runlog.run import load_run
from tests.unit.replay.bisections import quick, recorded
from tests.unit.replay.recordings import USER_FILE


def test_a_bad_sample_is_located_and_proven(bad_sample: Path) -> None:
    result = bisect_run(bad_sample, further_steps=3)
    assert result.status is BisectStatus.LOCATED
    assert (result.first_bad_step, result.root_step) == (30, 30)
    assert result.origin is not None
    assert (result.origin.phase, result.origin.operator) == ("input", "input")
    assert (result.samples, result.batch_size) == ((7,), 32)
    assert (result.reproduces, result.replays) == (True, 3)
    assert result.persistence is Persistence.TRANSIENT
    assert (result.replayed_from, result.faithful_until, result.compared) == (24, 30, 7)
    assert result.departure is None
    outcomes = {trial.change: trial.finite for trial in result.what_if}
    assert outcomes["without the guilty samples"] is True
    assert outcomes["fp64"] is False
    assert result.remedy[0].startswith("Leave sample 7 out of the batch of step 30")
    assert "--capsule" in result.next_command
    assert "'" in result.next_command  # the directory's name has a space


def test_the_answer_is_kept_where_the_report_finds_it(bad_sample: Path) -> None:
    result = quick(bad_sample / "checkpoints")
    stored, notes = bisection_of(load_run(bad_sample))
    assert stored == result
    assert notes == ()
    assert json.loads((bad_sample / NAME).read_text())["log"]["last_step"] == 30


def test_saved_states_beyond_the_bad_step_need_no_look(bad_sample: Path) -> None:
    verdicts = {state.step: state.verdict for state in quick(bad_sample).checkpoints}
    assert verdicts[24] == "good"


def test_a_fault_that_is_over_may_leave_damage(tmp_path: Path) -> None:
    result = quick(recorded("nan-applied", tmp_path / "run", 10, steps=50))
    assert result.persistence is Persistence.TRANSIENT
    assert result.damaged
    assert result.damage_stayed
    assert "the run took it, and its damage stayed" in again(result)


def test_a_recipe_of_another_name_is_said(copy: Path) -> None:
    result = quick(copy, recipe="where-trap")
    assert any("where-trap is not bad-sample" in note for note in result.notes)
    assert result.tolerance > 0


def test_nonsense_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no number"):
        quick(tmp_path / "nowhere", bad="loss>ten")
    with pytest.raises(InputError, match="no such file"):
        quick(tmp_path / "nowhere")


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1.0])
def test_a_tolerance_that_is_none_is_refused(bad_sample: Path, tolerance: float) -> None:
    with pytest.raises(UsageError, match="is no tolerance"):
        quick(bad_sample, tolerance=tolerance)


def test_randomness_and_accumulation_replay_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_FILE)
    run = recorded(f"{tmp_path / 'mine.py'}:mine", tmp_path / "run", steps=10)
    result = quick(run, recipe=f"{tmp_path / 'mine.py'}:mine")
    assert result.status is BisectStatus.HEALTHY
    assert (result.compared, result.departure) == (10, None)


def test_a_run_from_another_device_is_labelled(copy: Path) -> None:
    manifest = json.loads((copy / "run.json").read_text())
    manifest["device"] = "cuda"
    (copy / "run.json").write_text(json.dumps(manifest))
    result = quick(copy, device="cpu")
    assert result.cross_device
    assert (result.first_bad_step, result.tolerance) == (30, 1e-3)
    assert any("not the same bits" in note for note in result.notes)


def test_a_device_that_is_not_here_is_not_asked_for_again(bad_sample: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has it")
    result = quick(bad_sample, device="cuda")
    assert result.first_bad_step == 30
    assert any("no CUDA device here" in note for note in result.notes)
    assert result.next_command
    assert "--device" not in result.next_command
