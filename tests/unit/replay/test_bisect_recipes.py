"""Whose code is replayed: a user's own recipe, one that has changed, data that are gone."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus, Persistence
from tests.unit.replay.bisections import LOG_OF_ZERO, quick, recorded


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


def test_a_run_without_its_run_json_is_replayed_by_the_recipe_that_is_named(
    mine: Path, tmp_path: Path
) -> None:
    (mine / "run.json").unlink()
    result = quick(mine, recipe=f"{tmp_path / 'mine.py'}:mine")
    assert (result.first_bad_step, result.reproduces, result.departure) == (9, True, None)
    assert result.origin is not None
    assert result.origin.source_line.startswith("mine.py:12")
    assert any("the settings are those that the recipe itself brings" in n for n in result.notes)
    unnamed = quick(mine)
    assert unnamed.origin is None
    assert any("name the training: --recipe" in note for note in unnamed.notes)


def test_a_log_that_lost_its_end_hides_no_fault(mine: Path, tmp_path: Path) -> None:
    """Its last rows are gone, and the saved state after them says that it went on."""
    log = mine / "steps.csv"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:6]))
    result = quick(mine, recipe=f"{tmp_path / 'mine.py'}:mine")
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 9)
    assert "step 9 goes bad in the replay" in result.reason


def test_a_changed_recipe_departs_and_claims_no_operator(mine: Path, tmp_path: Path) -> None:
    changed = LOG_OF_ZERO.replace("lr=1e-2", "lr=1e-1").replace("step == 9", "step == 12")
    (tmp_path / "other.py").write_text(changed)
    result = quick(mine, recipe=f"{tmp_path / 'other.py'}:mine")
    assert result.first_bad_step in (0, 1, 9)
    assert result.reproduces is False
    assert result.departure is not None
    assert any("is not the file that was recorded" in note for note in result.notes)


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


@pytest.mark.parametrize("gone", ["FileNotFoundError('gone')", "SystemExit(3)"])
def test_data_that_are_gone_since_leave_the_logs_answer(
    mine: Path, tmp_path: Path, gone: str
) -> None:
    text = LOG_OF_ZERO.replace("if step == 9:", "if step > 0:").replace(
        "inputs[2, 1] = 0.0", f"raise {gone}"
    )
    (tmp_path / "gone.py").write_text(text)
    result = quick(mine, recipe=f"{tmp_path / 'gone.py'}:mine")
    assert (result.first_bad_step, result.origin) == (9, None)
    assert any("though the record had them" in note for note in result.notes)


def test_a_step_that_exits_is_an_answer_and_no_exit(tmp_path: Path) -> None:
    text = LOG_OF_ZERO.replace(
        "return F.mse_loss(model(inputs.log()), targets)",
        "return F.mse_loss(model(inputs), targets) if inputs.all() else sys.exit(3)",
    )
    (tmp_path / "exits.py").write_text(f"import sys\n{text}")
    recipe = f"{tmp_path / 'exits.py'}:mine"
    with suppress(SystemExit):
        recorded(recipe, tmp_path / "run", steps=14)
    result = quick(tmp_path / "run", recipe=recipe)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (9, "SystemExit")
    assert "sys.exit(3)" in result.origin.source_line


def test_a_step_that_raises_only_here_leaves_the_logs_answer(mine: Path, tmp_path: Path) -> None:
    text = LOG_OF_ZERO.replace("inputs.log()", "list(inputs)")
    (tmp_path / "other.py").write_text(text)
    result = quick(mine, recipe=f"{tmp_path / 'other.py'}:mine")
    assert (result.first_bad_step, result.origin) == (9, None)
    (note,) = [note for note in result.notes if "raises here" in note]
    assert "TypeError" in note
    assert "what is built here is not what trained" in note


def test_a_step_that_takes_parts_of_a_batch_for_batches_says_how_to_give_one(
    mine: Path, tmp_path: Path
) -> None:
    text = LOG_OF_ZERO.replace("batch=batch)", "batch=lambda step: list(batch(step)))")
    (tmp_path / "listed.py").write_text(text)
    result = quick(mine, recipe=f"{tmp_path / 'listed.py'}:mine")
    (note,) = [note for note in result.notes if "raises here" in note]
    assert "gave a list of 2 tensors, which means 2 micro-batches: make one batch a tuple" in note


def test_a_config_that_cannot_be_built_leaves_the_logs_answer(copy: Path) -> None:
    manifest = json.loads((copy / "run.json").read_text())
    manifest["recipe"]["config"]["model"]["width"] = 10**9
    (copy / "run.json").write_text(json.dumps(manifest))
    result = quick(copy)
    assert (result.first_bad_step, result.origin) == (30, None)
    assert any("the training cannot be built here" in note for note in result.notes)
    assert "--recipe" not in result.next_command
