"""What a run directory names is never trusted, and what cannot be replayed is told."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.errors import InputError, NotReplayableError
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.session import open_session
from forensics.runlog.run import load_run
from tests.unit.replay.recordings import USER_FILE, open_run, quiet, record

# -- what cannot be replayed -------------------------------------------------------------------


def _edit(run: Path, **recipe: Any) -> None:
    path = run / "run.json"
    data = json.loads(path.read_text())
    data["recipe"] |= recipe
    path.write_text(json.dumps(data))


def test_a_file_is_loaded_only_where_the_user_names_it(user_run: Path) -> None:
    with pytest.raises(NotReplayableError, match=r"--recipe path/to/mine\.py:mine"):
        open_run(user_run / "run")


@pytest.mark.parametrize(
    "recipe",
    [
        {"name": "os:system", "file": ""},
        {"name": "os.system", "file": ""},
        {"name": "../evil.py:mine", "file": ""},
        {"name": "mine", "file": "../../evil.py"},
        {"name": ["a", "list"], "file": 3},
        {"name": "", "file": ""},
    ],
)
def test_nothing_that_a_run_directory_names_is_imported(
    user_run: Path, tmp_path: Path, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(user_run / "run", tmp_path / "a" / "run")
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "run"):
        (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + USER_FILE)
    monkeypatch.chdir(tmp_path / "a" / "run")
    _edit(tmp_path / "a" / "run", entry_point="os:system", **recipe)
    path = list(sys.path)
    with pytest.raises(NotReplayableError):
        open_run(tmp_path / "a" / "run")
    assert not (tmp_path / "ran").exists()
    assert sys.path == path


def test_a_config_of_another_recipe_is_refused(user_run: Path, tmp_path: Path) -> None:
    run = record("healthy-mlp", tmp_path / "run")
    _edit(run, config={"steps": 3, "model": {"no_such_setting": 1}})
    with pytest.raises(NotReplayableError, match="no_such_setting"):
        open_run(run)


def test_a_user_s_file_that_has_changed_is_told(user_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_FILE + "\n# another version\n")
    told: list[str] = []
    with open_session(
        load_run(user_run / "run"), recipe=f"{tmp_path / 'mine.py'}:mine", say=told.append
    ):
        assert any("has changed since" in line for line in told)


def test_an_unreadable_state_is_passed_over(tmp_path: Path) -> None:
    run = record("healthy-mlp", tmp_path / "run")
    path = run / "checkpoints" / "step-00000008.pt"
    path.write_bytes(path.read_bytes()[:500])
    with open_run(run) as session:
        assert session.go_to(9) == 4
        assert list(session.untestable) == [8]
        assert session.states() == (0, 4, 12)


def test_a_state_that_is_a_link_out_of_the_run_is_passed_over(tmp_path: Path) -> None:
    run = record("healthy-mlp", tmp_path / "run")
    path = run / "checkpoints" / "step-00000008.pt"
    path.rename(tmp_path / "elsewhere.pt")
    path.symlink_to(tmp_path / "elsewhere.pt")
    with open_run(run) as session:
        assert session.go_to(9) == 4
        assert "leads out of its folder" in session.untestable[8]


def test_a_state_of_another_model_is_passed_over(tmp_path: Path) -> None:
    run = record("healthy-mlp", tmp_path / "run")
    other = record("healthy-lstm", tmp_path / "other", steps=8)
    source = other / "checkpoints" / "step-00000008.pt"
    (run / "checkpoints" / source.name).write_bytes(source.read_bytes())
    with open_run(run) as session:
        assert session.go_to(8) == 4
        assert "does not fit" in session.untestable[8]
        assert session.departure(session.run_step()) is None


def test_settings_of_the_process_are_put_back(user_run: Path) -> None:
    own = torch.get_num_threads()
    path = user_run / "run"
    recorded = json.loads((path / "run.json").read_text())
    assert recorded["threads"] == own
    with open_run(path, recipe=f"{user_run / 'mine.py'}:mine") as session:
        session.run_step()
    assert torch.get_num_threads() == own


def test_another_device_is_labelled(user_run: Path, tmp_path: Path) -> None:
    shutil.copytree(user_run / "run", tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "cuda"}))
    with open_run(tmp_path / "run", recipe=f"{user_run / 'mine.py'}:mine") as session:
        if session.device.type == "cpu":
            assert session.cross_device
            assert session.tolerance == 1e-3
            assert any("recorded on cuda" in note for note in session.notes)


def test_a_user_s_error_in_the_named_file_is_an_input_error(user_run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    with pytest.raises(InputError, match="nowhere_to_be_found"):
        open_run(user_run / "run", recipe=f"{tmp_path / 'broken.py'}:mine")


def test_checkpointed_activations_replay_alike(tmp_path: Path) -> None:
    """Recomputation draws from the same generators; the trace must not disturb them."""
    source = USER_FILE.replace("model(inputs)", "_cut(model, inputs)") + (
        "\nfrom torch.utils.checkpoint import checkpoint\n"
        "def _cut(model, inputs):\n"
        "    return model[2](checkpoint(model[:2], inputs, use_reentrant=False))\n"
    )
    (tmp_path / "cut.py").write_text(source)
    kind = find_recipe(f"{tmp_path / 'cut.py'}:mine")
    config = Config(steps=3)
    record_run(kind(config), config, RecordOptions(out=tmp_path / "run"), say=quiet)
    with open_run(tmp_path / "run", recipe=f"{tmp_path / 'cut.py'}:mine") as session:
        assert [session.departure(session.run_step()) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("threads", [1_000_000, -1, 0])
def test_a_thread_count_that_makes_no_sense_is_not_taken(
    user_run: Path, tmp_path: Path, threads: int
) -> None:
    shutil.copytree(user_run / "run", tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": threads}))
    own = torch.get_num_threads()
    with open_run(tmp_path / "run", recipe=f"{user_run / 'mine.py'}:mine") as session:
        assert 1 <= torch.get_num_threads() <= max(own, os.cpu_count() or 1)
        assert any("threads" in note for note in session.notes) is (threads != 0)
        assert session.run_step().bad == ()
    assert torch.get_num_threads() == own


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_asked_for_and_not_there_is_told(user_run: Path) -> None:
    recipe = f"{user_run / 'mine.py'}:mine"
    with open_run(user_run / "run", recipe=recipe, device="cuda") as session:
        assert session.notes[0] == "no CUDA device here: replaying on the CPU instead"
    with open_run(user_run / "run", recipe=recipe) as session:
        assert not any("no CUDA" in note for note in session.notes)
