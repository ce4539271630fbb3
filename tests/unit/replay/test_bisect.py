"""Bisection as a whole, on short recordings of known faults."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.diagnose.bisection_file import NAME, bisection_of
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus, Persistence
from forensics.errors import InputError, TrainingRaisedError, UsageError
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.render.bisection_phrases import again
from forensics.replay.bisect import bisect_run
from forensics.runlog.run import load_run
from tests.unit.replay.recordings import USER_FILE, quiet

LOG_OF_ZERO = """
import torch
from torch import nn
from torch.nn import functional as F
from forensics import Config, Training, recipe

@recipe("mine", "a batch that holds a zero")
def mine(config: Config) -> Training:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    def loss(model, batch):
        inputs, targets = batch
        return F.mse_loss(model(inputs.log()), targets)
    def batch(step):
        made = torch.Generator().manual_seed(step)
        inputs = torch.rand(6, 4, generator=made) + 0.1
        if step == 9:
            inputs[2, 1] = 0.0
        return inputs, inputs.sum(1, keepdim=True)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss, batch=batch)
"""


def recorded(recipe: str, out: Path, every: int = 4, **settings: Any) -> Path:
    kind = find_recipe(recipe)
    config = Config.from_dict(settings, base=kind.defaults)
    file = Path(recipe.partition(":")[0]) if recipe.partition(":")[0].endswith(".py") else None
    options = RecordOptions(out, checkpoint_every=every, keep="last:99", recipe_file=file)
    with suppress(TrainingRaisedError):  # that is the fault
        record_run(kind(config), config, options, say=quiet)
    return out


@pytest.fixture(scope="module")
def bad_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NaN in sample 7 of step 30."""
    return recorded("bad-sample", tmp_path_factory.mktemp("run") / "bad sample", 8)


@pytest.fixture
def copy(bad_sample: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return shutil.copytree(bad_sample, tmp_path / "run")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's own recipe in a file, which goes bad at step 9."""
    (tmp_path / "mine.py").write_text(LOG_OF_ZERO)
    return recorded(f"{tmp_path / 'mine.py'}:mine", tmp_path / "run", steps=14)


def quick(path: Path, **options: Any) -> BisectionResult:
    return bisect_run(path, **{"what_if": False, **options})


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


def test_a_condition_is_answered_by_the_log_and_traced(bad_sample: Path) -> None:
    result = quick(bad_sample, bad="loss==nan")
    assert (result.first_bad_step, result.reproduces) == (30, True)
    assert result.bad == "loss is NaN"


def test_a_condition_that_no_row_fulfils(bad_sample: Path) -> None:
    result = quick(bad_sample, bad="norm>1e6")
    assert result.status is BisectStatus.NOT_BISECTABLE  # the report has a root cause
    assert result.reason == "norm>1e6 holds in none of 60 rows"


def test_a_false_row_does_not_hide_the_real_fault(copy: Path) -> None:
    lines = (copy / "steps.csv").read_text().splitlines()
    cells = lines[15].split(",")
    cells[lines[0].split(",").index("loss")] = "nan"
    (copy / "steps.csv").write_text("\n".join([*lines[:15], ",".join(cells), *lines[16:], ""]))
    result = quick(copy)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (30, "input")
    assert any("the row of step 14 is not what the training made" in n for n in result.notes)


def test_a_recipe_of_another_name_is_said(copy: Path) -> None:
    result = quick(copy, recipe="where-trap")
    assert any("where-trap is not bad-sample" in note for note in result.notes)
    assert result.tolerance > 0


def test_a_range_beyond_the_run_is_refused(bad_sample: Path) -> None:
    with pytest.raises(UsageError, match="no step lies in the range"):
        quick(bad_sample, from_step=1000)


@pytest.mark.parametrize("tolerance", [float("nan"), float("inf"), -1.0])
def test_a_tolerance_that_is_none_is_refused(bad_sample: Path, tolerance: float) -> None:
    with pytest.raises(UsageError, match="is no tolerance"):
        quick(bad_sample, tolerance=tolerance)


def test_a_fault_that_is_over_may_leave_damage(tmp_path: Path) -> None:
    result = quick(recorded("nan-applied", tmp_path / "run", 10, steps=50))
    assert result.persistence is Persistence.TRANSIENT
    assert result.damaged
    assert "its damage stays" in again(result)


def test_a_condition_on_steps_without_a_row_is_answered_by_replay(copy: Path) -> None:
    log = (copy / "steps.csv").read_text().splitlines()
    (copy / "steps.csv").write_text("\n".join(log[:26]) + "\n")
    result = quick(copy, bad="loss==nan", until_step=40)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 30)
    assert "step 25 has none" in result.reason


@pytest.mark.parametrize(("first", "last"), [(None, 29), (31, None)])
def test_the_range_leaves_the_bad_step_out(
    bad_sample: Path, first: int | None, last: int | None
) -> None:
    result = quick(bad_sample, from_step=first, until_step=last)
    assert result.status is BisectStatus.HEALTHY


def test_a_range_that_ends_before_it_begins(bad_sample: Path) -> None:
    with pytest.raises(UsageError, match="ends before it begins"):
        quick(bad_sample, from_step=9, until_step=3)


def test_nonsense_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no number"):
        quick(tmp_path / "nowhere", bad="loss>ten")
    with pytest.raises(InputError, match="no such file"):
        quick(tmp_path / "nowhere")


def test_an_interrupt_leaves_what_is_known(bad_sample: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("replaying") and done == 3:
            raise KeyboardInterrupt

    result = quick(bad_sample, progress=stop)
    assert result.status is BisectStatus.PARTIAL
    assert result.reason == "stopped at step 27"
    assert (result.faithful_until, result.compared) == (26, 3)
    assert result.next_command.startswith("forensics bisect ")
    assert any("24 to 26 were replayed and are sound" in note for note in result.notes)


def test_an_interrupt_of_the_trials_keeps_the_located_step(bad_sample: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("what if"):
            raise KeyboardInterrupt

    result = bisect_run(bad_sample, progress=stop)
    assert result.status is BisectStatus.PARTIAL
    assert result.origin is not None
    assert (result.first_bad_step, result.samples) == (30, (7,))


def test_an_interrupt_does_not_replace_a_whole_answer(copy: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("replaying"):
            raise KeyboardInterrupt

    whole = quick(copy)
    result = quick(copy, progress=stop)
    assert result.status is BisectStatus.PARTIAL
    assert any("earlier, whole bisection" in note for note in result.notes)
    assert bisection_of(load_run(copy))[0] == whole


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_directory_still_gets_its_answer(copy: Path) -> None:
    copy.chmod(0o555)
    try:
        result = quick(copy)
    finally:
        copy.chmod(0o755)
    assert result.status is BisectStatus.LOCATED
    assert any("could not be kept" in note for note in result.notes)


def test_where_the_answer_cannot_be_written_it_says_so(copy: Path) -> None:
    (copy / NAME).unlink(missing_ok=True)
    (copy / NAME).mkdir()
    result = quick(copy)
    assert result.first_bad_step == 30
    assert any("could not be kept in the run directory" in note for note in result.notes)


def test_a_state_that_belies_its_health_file_is_passed_over(copy: Path) -> None:
    path = copy / "checkpoints" / "step-00000024.pt"
    state = torch.load(path, weights_only=True)
    name = next(iter(state["model"]))
    state["model"][name].view(-1)[0] = float("nan")
    torch.save(state, path)
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step) == (16, 30)
    assert result.origin is not None
    assert result.origin.operator == "input"


def test_states_that_cannot_be_read_are_passed_over(copy: Path) -> None:
    for step in (16, 24):
        (copy / "checkpoints" / f"step-{step:08d}.pt").write_bytes(b"torn")
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step, result.reproduces) == (8, 30, True)


def test_a_config_of_fewer_steps_than_were_logged_cuts_nothing_off(copy: Path) -> None:
    manifest = json.loads((copy / "run.json").read_text())
    manifest["recipe"]["config"]["steps"] = 20
    (copy / "run.json").write_text(json.dumps(manifest))
    result = quick(copy)
    assert (result.first_bad_step, result.reproduces) == (30, True)


@pytest.mark.parametrize("part", ["steps.csv", "run.json"])
def test_a_run_without_its_log_or_its_manifest_still_gets_an_answer(copy: Path, part: str) -> None:
    (copy / part).unlink()
    result = quick(copy)
    assert result.first_bad_step == 30
    assert (result.origin is None) is (part == "run.json")  # without it nothing can be replayed


def test_without_any_state_it_is_trained_from_the_start(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step, result.compared) == (0, 30, 31)


def test_a_file_is_never_loaded_unless_the_user_names_it(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('loaded')")
    result = quick(mine)
    assert (result.status, result.first_bad_step, result.origin) == (BisectStatus.LOCATED, 9, None)
    assert result.bad == "loss is NaN"
    assert result.next_command.endswith("/mine.py:mine")  # told, and not run
    assert any("a file is loaded only if you name it" in note for note in result.notes)


def test_a_users_own_recipe_is_replayed_when_it_is_named(mine: Path, tmp_path: Path) -> None:
    recipe = f"{tmp_path / 'mine.py'}:mine"
    result = quick(mine, recipe=recipe, capsule=tmp_path / "capsule")
    assert result.origin is not None
    assert result.origin.source_line.startswith("mine.py:12")
    assert result.samples == (2,)
    assert result.capsule == str(tmp_path / "capsule")
    assert result.capsule_bytes > 1000
    assert result.next_command.startswith("forensics capsule run")


def test_a_changed_recipe_departs_and_claims_no_operator(mine: Path, tmp_path: Path) -> None:
    changed = LOG_OF_ZERO.replace("lr=1e-2", "lr=1e-1").replace("step == 9", "step == 12")
    (tmp_path / "other.py").write_text(changed)
    result = quick(mine, recipe=f"{tmp_path / 'other.py'}:mine")
    assert result.first_bad_step in (0, 1, 9)
    assert result.reproduces is False
    assert result.departure is not None
    assert any("is not the file that was recorded" in note for note in result.notes)


def test_a_proof_that_breaks_off_costs_no_located_step(
    bad_sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("select() takes no indices")

    monkeypatch.setattr("forensics.replay.proof.proving.guilty_samples", broken)
    result = quick(bad_sample)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 30)
    assert result.reproduces is True
    assert any("select() takes no indices" in note for note in result.notes)


def test_data_that_cannot_be_had_as_in_the_record(tmp_path: Path) -> None:
    text = LOG_OF_ZERO.replace("inputs[2, 1] = 0.0", "raise FileNotFoundError('shard-17')")
    (tmp_path / "mine.py").write_text(text)
    recipe = f"{tmp_path / 'mine.py'}:mine"
    result = quick(recorded(recipe, tmp_path / "run", steps=14), recipe=recipe)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.phase) == (9, "input")
    assert result.origin.operator == "batch"
    assert "FileNotFoundError: shard-17" in result.origin.summary
    assert result.origin.source_line.startswith("mine.py:17")
    assert (result.reproduces, result.persistence) == (True, Persistence.TRANSIENT)


def test_data_that_are_gone_since_leave_the_logs_answer(mine: Path, tmp_path: Path) -> None:
    text = LOG_OF_ZERO.replace("if step == 9:", "if step > 0:").replace(
        "inputs[2, 1] = 0.0", "raise FileNotFoundError('gone')"
    )
    (tmp_path / "gone.py").write_text(text)
    result = quick(mine, recipe=f"{tmp_path / 'gone.py'}:mine")
    assert (result.first_bad_step, result.origin) == (9, None)
    assert any("though the record had them" in note for note in result.notes)


def test_a_config_that_cannot_be_built_leaves_the_logs_answer(copy: Path) -> None:
    manifest = json.loads((copy / "run.json").read_text())
    manifest["recipe"]["config"]["model"]["width"] = 10**9
    (copy / "run.json").write_text(json.dumps(manifest))
    result = quick(copy)
    assert (result.first_bad_step, result.origin) == (30, None)
    assert any("the training cannot be built here" in note for note in result.notes)
    assert "--recipe" not in result.next_command


def test_a_folder_of_states_is_judged_by_health(bad_sample: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    for path in (bad_sample / "checkpoints").glob("*.pt"):
        shutil.copy(path, folder)
    with pytest.raises(UsageError, match="this folder has no log"):
        bisect_run(folder, bad="loss>3")
    result = bisect_run(folder, recipe="bad-sample")
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert result.origin is None
    assert any("The recipe was not used" in note for note in result.notes)
    assert not (folder / NAME).exists()


def test_a_fault_that_no_number_shows_is_located(tmp_path: Path) -> None:
    run = recorded("clip-before-unscale", tmp_path / "run", steps=12)
    result = quick(run)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 0)
    assert result.origin is not None
    assert (result.origin.phase, result.origin.operator) == ("clip", "clip")
    assert result.reproduces is True


def test_an_optimizer_that_starts_anew_is_dated(tmp_path: Path) -> None:
    run = recorded("resume-without-optimizer", tmp_path / "run", 100, steps=420)
    result = quick(run)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (400, "resume")


def test_a_bit_that_flipped_in_the_recording_comes_from_outside(tmp_path: Path) -> None:
    result = quick(recorded("bit-flip", tmp_path / "run", 3))
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.phase) == (5, "outside")
    assert (result.origin.parameter, result.origin.element) == ("layers.0.weight", "[3, 1]")
    assert result.reproduces is False
    assert result.persistence is Persistence.TRANSIENT


def test_an_exception_that_a_saved_state_lacks_the_cause_of(tmp_path: Path) -> None:
    run = recorded("spike-skipped-half", tmp_path / "run", 3)
    result = quick(run)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (6, "GradScaler.unscale_")
    assert any("lacks what the fault depends on" in note for note in result.notes)


@pytest.mark.parametrize("recipe", ["healthy-mlp", "control-scaler-warm-up", "control-loss-spike"])
def test_a_healthy_run_is_healthy(recipe: str, tmp_path: Path) -> None:
    result = quick(recorded(recipe, tmp_path / "run", 5, steps=20))
    assert (result.status, result.origin) == (BisectStatus.HEALTHY, None)
    assert "what was applied is right" in result.reason


def test_a_growth_that_has_not_overflowed_is_not_called_healthy(tmp_path: Path) -> None:
    result = quick(recorded("lr-too-high", tmp_path / "run", 10, steps=45))
    assert result.status is BisectStatus.LOCATED
    assert result.growth is not None
    assert result.origin is not None
    assert result.origin.operator == "growth"


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
