"""Capsules written and replayed: every kind of fault, nothing else ever replaced."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from forensics.errors import InputError, NotReplayableError, OutputError
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.capsule import folder, run_capsule, write_capsule
from forensics.replay.tracing.step_forensics import audit_step
from tests.unit.replay.capsule.capsules import result_of, run_script, write
from tests.unit.replay.faulty import before_step
from tests.unit.replay.recordings import open_run


def test_a_capsule_is_confirmed_from_its_folder_alone(written: Path) -> None:
    verdict = run_capsule(written)
    assert verdict.confirmed
    assert verdict.differences == ()
    assert (verdict.step, verdict.samples, verdict.batch_size) == (5, (3,), 16)
    assert verdict.found.operator == "aten.rsqrt"


def test_it_holds_the_guilty_sample_alone(written: Path) -> None:
    (inputs, labels), *rest = torch.load(written / "batch.pt", weights_only=True)
    assert rest == []
    assert inputs.shape[0] == labels.shape[0] == 1


def test_its_size_is_about_that_of_the_state(written: Path) -> None:
    state = (written / "state.pt").stat().st_size
    rest = sum(f.stat().st_size for f in written.iterdir()) - state
    assert rest < 32_000
    assert (written / "op.pt").stat().st_size < 4_000


def test_its_scripts_run_by_themselves(written: Path, capsys) -> None:
    assert run_script(written / "repro.py") == 0
    assert capsys.readouterr().out.startswith("confirmed: in step 5 ")
    assert run_script(written / "repro_op.py") == 0
    assert capsys.readouterr().out == "aten.rsqrt.default made Inf elements: 1\n"
    text = (written / "repro_op.py").read_text()
    assert "forensics" not in text
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("recipe", "step", "operator"),
    [
        ("batchnorm-poisoned", 2, "aten.native_batch_norm"),  # a buffer, written unannounced
        ("second-moment-overflow", 5, "aten._foreach_addcmul"),  # in place, in a list
        ("lr-nan", 5, "aten._foreach_add"),
        ("sqrt-at-zero", 5, "aten.div"),  # a backward operator
        ("resume-without-scaler", 12, "aten._to_copy"),
    ],
)
def test_operators_of_every_kind_are_caught(
    tmp_path: Path, recipe: str, step: int, operator: str
) -> None:
    settings = {"steps": step + 2}
    if recipe == "batchnorm-poisoned":
        settings["data"] = {"samples": 8, "size": 8, "classes": 6, "noise": 2.0, "fault_step": 2}
    path = write(tmp_path, recipe, step, **settings)
    facts = json.loads((path / "capsule.json").read_text())
    assert facts["operator"].startswith(operator)
    tensors = runpy.run_path(str(path / "repro_op.py"))["tensors"]
    assert any(not bool(t.isfinite().all()) for t in tensors)


@pytest.mark.parametrize(
    ("recipe", "step"),
    [
        ("spike-skipped-half", 6),  # the scaler stands between unscale_ and update
        ("recompute-other-mask", 0),  # needs the random numbers
        ("clip-before-unscale", 0),
        ("empty-parameter", 0),
        ("bad-sample", 3),
    ],
)
def test_faults_without_an_operator_are_confirmed_too(
    tmp_path: Path, recipe: str, step: int
) -> None:
    settings = {"steps": step + 2}
    if recipe == "bad-sample":
        settings["data"] = {"samples": 8, "features": 16, "classes": 8, "noise": 2.0} | {
            "fault_step": 3
        }
    path = write(tmp_path, recipe, step, **settings)
    assert not (path / "op.pt").exists()
    assert json.loads((path / "capsule.json").read_text())["operator_note"]
    assert run_capsule(path).confirmed


def test_a_sound_step_makes_no_capsule(tmp_path: Path) -> None:
    with (
        before_step(tmp_path, "healthy-mlp", 2, steps=4) as (session, before),
        pytest.raises(NotReplayableError, match="sound"),
    ):
        write_capsule(tmp_path / "capsule", session, before, result_of(2, None))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["healthy-mlp"]


def test_an_existing_folder_is_refused_unless_it_is_empty_or_a_capsule(
    tmp_path: Path, written: Path
) -> None:
    with before_step(tmp_path, "empty-parameter", 0, steps=2) as (session, before):
        origin = audit_step(session, before=before)

        def put(name: str, **options: bool) -> Path:
            result = result_of(0, origin)
            return write_capsule(tmp_path / name, session, before, result, **options).path

        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter-1.tex").write_text("years of work")
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="holds other files"):
                put("thesis", overwrite=overwrite)
        assert (tmp_path / "thesis" / "chapter-1.tex").read_text() == "years of work"
        (tmp_path / "empty").mkdir()
        assert (put("empty") / "capsule.json").is_file()
        with pytest.raises(OutputError, match="--overwrite replaces it"):
            put("empty")
        assert (put("empty", overwrite=True) / "capsule.json").is_file()
        (tmp_path / "link").symlink_to(tmp_path / "thesis")
        with pytest.raises(OutputError, match="no folder"):
            put("link", overwrite=True)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"empty-parameter", "thesis", "empty", "link"}


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "sync_file", full)
    with before_step(tmp_path, "empty-parameter", 0, steps=2) as (session, before):
        origin = audit_step(session, before=before)
        with pytest.raises(OutputError, match="No space left"):
            write_capsule(tmp_path / "capsule", session, before, result_of(0, origin))
    assert [p.name for p in tmp_path.iterdir()] == ["empty-parameter"]


# -- a recipe of the user's own ---------------------------------------------------------------

_MINE = """
import pathlib, torch
from forensics import Config, Training, recipe

pathlib.Path(__file__).with_name("loaded").touch()

@recipe("mine", "log of a number that reaches 0", defaults=Config(steps=4, max_norm=None))
def mine(config):
    model = torch.nn.Linear(3, 1)
    def batch(step):
        made = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 3, generator=made)
        if step == 2:
            inputs[5] = float("inf")
        return [{"x": inputs}]
    return Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: model(batch["x"]).sigmoid().log().mean(), batch=batch,
    )
"""


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule of a run whose recipe is a file."""
    home = tmp_path_factory.mktemp("mine")
    source = home / "mine.py"
    source.write_text(_MINE)
    kind = find_recipe(f"{source}:mine")
    options = RecordOptions(out=home / "run", checkpoint_every=1, recipe_file=source)
    record_run(kind(Config(steps=4, max_norm=None)), Config(steps=4, max_norm=None), options)
    with open_run(home / "run", recipe=f"{source}:mine") as session:
        session.go_to(2)
        before = session.capture()
        origin = audit_step(session, before=before)
        made = write_capsule(home / "capsule", session, before, result_of(2, origin, (5,)))
    assert made.confirmed, made.notes
    return made.path


_PILING = """
import torch
from forensics import Config, Recipe, Training, recipe

@recipe("piling", "the root of what is left of 5, less the gradients piled up so far")
class Piling(Recipe):
    defaults = Config(steps=8, max_norm=None)
    def build(self, config):
        model = torch.nn.Linear(1, 1, bias=False)
        return Training(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda m, b: None)
    def batch(self, step):
        return [torch.ones(2, 1)]
    def step(self, training, batches, recorder):
        weight = training.model.weight
        piled = 0.0 if weight.grad is None else weight.grad.clone().sum()
        loss = training.model(batches[0]).mean() + 0 * (5.5 - torch.as_tensor(piled)).sqrt()
        loss.backward()
        recorder.gradients()
        training.optimizers[0].step()
        recorder.end_step(loss)
        return loss
"""


def test_gradients_are_kept_only_where_the_step_goes_by_them(tmp_path: Path) -> None:
    source = tmp_path / "piling.py"
    source.write_text(_PILING)
    kind = find_recipe(f"{source}:piling")
    options = RecordOptions(out=tmp_path / "run", checkpoint_every=1, recipe_file=source)
    record_run(kind(kind.defaults), kind.defaults, options)
    with open_run(tmp_path / "run", recipe=f"{source}:piling") as session:
        session.go_to(0)
        while session.step_index < 6:
            assert not session.run_step().bad
        before = session.capture()
        made = write_capsule(tmp_path / "capsule", session, before, result_of(6, None))
    assert made.confirmed, made.notes
    assert _kept_gradients(made.path) == {"weight"}
    plain = write(tmp_path / "plain", "sqrt-at-zero", 5, steps=7)
    assert _kept_gradients(plain) == set()


def _kept_gradients(capsule: Path) -> set[str]:
    state = torch.load(capsule / "state.pt", weights_only=True)
    return set(state["beyond"]["gradients"])


def test_a_copied_recipe_is_never_loaded_by_itself(users: Path, tmp_path: Path) -> None:
    capsule = shutil.copytree(users, tmp_path / "capsule")
    with pytest.raises(NotReplayableError) as caught:
        run_capsule(capsule)
    line = caught.value.line()
    assert "loaded only if you name it" in line
    assert f"--recipe {capsule / 'recipe_source.py'}:mine" in line
    assert not (capsule / "loaded").exists()


@pytest.mark.parametrize(
    ("replayed_by", "named"), [("mine", "recipe_source.py:mine"), ("", "recipe_source.py")]
)
def test_a_loop_that_recorded_no_recipe_is_told_the_name_of_the_one_that_replayed_it(
    users: Path, tmp_path: Path, replayed_by: str, named: str
) -> None:
    capsule = shutil.copytree(users, tmp_path / "capsule")
    facts = json.loads((capsule / "capsule.json").read_text())
    assert facts["replayed_by"] == "mine"
    facts["manifest"]["recipe"], facts["replayed_by"] = {}, replayed_by
    (capsule / "capsule.json").write_text(json.dumps(facts))
    with pytest.raises(NotReplayableError) as caught:
        run_capsule(capsule)
    assert caught.value.line().endswith(f"--recipe {capsule / named}")


def test_the_user_may_name_it_or_run_the_script(users: Path, tmp_path: Path) -> None:
    capsule = shutil.copytree(users, tmp_path / "capsule")
    assert (capsule / "recipe_source.py").read_text() == _MINE
    assert run_capsule(capsule, recipe=f"{capsule / 'recipe_source.py'}:mine").confirmed
    assert run_script(capsule / "repro.py") == 0


def test_another_recipe_does_not_confirm_or_does_not_fit(users: Path) -> None:
    with pytest.raises((InputError, NotReplayableError)):
        run_capsule(users, recipe="healthy-mlp")
