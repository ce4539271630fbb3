"""Capsules written, replayed, and read as a stranger's."""

from __future__ import annotations

import json
import os
import pickle
import runpy
import shutil
from pathlib import Path

import pytest
import torch

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.errors import InputError, NotReplayableError, OutputError
from forensics.replay.capsule import run_capsule, write_capsule
from forensics.replay.step_forensics import audit_step
from tests.unit.replay.faulty import before_step
from tests.unit.replay.recordings import open_run


def _result(step, origin, samples=()):
    return BisectionResult(
        path="x",
        status=BisectStatus.LOCATED,
        first_bad_step=step,
        origin=origin,
        samples=tuple(samples),
    )


def _write(home: Path, recipe: str, step: int, samples=(), **settings) -> Path:
    with before_step(home, recipe, step, **settings) as (session, before):
        origin = audit_step(session, before=before)
        made = write_capsule(home / "capsule", session, before, _result(step, origin, samples))
    assert made.confirmed, made.notes
    assert made.size == sum(f.stat().st_size for f in made.path.iterdir())
    return made.path


def _run_script(path: Path) -> int:
    """Run a script as Python would; its exit code."""
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule of one loud sample that overflows fp16."""
    return _write(tmp_path_factory.mktemp("capsule"), "norm-eps-fp16", 5, samples=(3,), steps=7)


@pytest.fixture
def capsule(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(written, tmp_path / "capsule")


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
    assert _run_script(written / "repro.py") == 0
    assert capsys.readouterr().out.startswith("confirmed: in step 5 ")
    assert _run_script(written / "repro_op.py") == 0
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
    path = _write(tmp_path, recipe, step, **settings)
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
    path = _write(tmp_path, recipe, step, **settings)
    assert not (path / "op.pt").exists()
    assert json.loads((path / "capsule.json").read_text())["operator_note"]
    assert run_capsule(path).confirmed


def test_a_sound_step_makes_no_capsule(tmp_path: Path) -> None:
    with (
        before_step(tmp_path, "healthy-mlp", 2, steps=4) as (session, before),
        pytest.raises(NotReplayableError, match="sound"),
    ):
        write_capsule(tmp_path / "capsule", session, before, _result(2, None))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["healthy-mlp"]


def test_an_existing_folder_is_refused_unless_it_is_empty_or_a_capsule(
    tmp_path: Path, written: Path
) -> None:
    with before_step(tmp_path, "empty-parameter", 0, steps=2) as (session, before):
        origin = audit_step(session, before=before)

        def write(name: str, **options: bool) -> Path:
            result = _result(0, origin)
            return write_capsule(tmp_path / name, session, before, result, **options).path

        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter-1.tex").write_text("years of work")
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="holds other files"):
                write("thesis", overwrite=overwrite)
        assert (tmp_path / "thesis" / "chapter-1.tex").read_text() == "years of work"
        (tmp_path / "empty").mkdir()
        assert (write("empty") / "capsule.json").is_file()
        with pytest.raises(OutputError, match="--overwrite replaces it"):
            write("empty")
        assert (write("empty", overwrite=True) / "capsule.json").is_file()
        (tmp_path / "link").symlink_to(tmp_path / "thesis")
        with pytest.raises(OutputError, match="no folder"):
            write("link", overwrite=True)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"empty-parameter", "thesis", "empty", "link"}


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    from forensics.replay.capsule import writing

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "sync_file", full)
    with before_step(tmp_path, "empty-parameter", 0, steps=2) as (session, before):
        origin = audit_step(session, before=before)
        with pytest.raises(OutputError, match="No space left"):
            write_capsule(tmp_path / "capsule", session, before, _result(0, origin))
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
    from forensics.record.config import Config
    from forensics.record.options import RecordOptions
    from forensics.record.recipe_lookup import find_recipe
    from forensics.record.reference_loop import record_run

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
        made = write_capsule(home / "capsule", session, before, _result(2, origin, (5,)))
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
    from forensics.record.options import RecordOptions
    from forensics.record.recipe_lookup import find_recipe
    from forensics.record.reference_loop import record_run

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
        made = write_capsule(tmp_path / "capsule", session, before, _result(6, None))
    assert made.confirmed, made.notes
    assert _kept_gradients(made.path) == {"weight"}
    plain = _write(tmp_path / "plain", "sqrt-at-zero", 5, steps=7)
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


def test_the_user_may_name_it_or_run_the_script(users: Path, tmp_path: Path) -> None:
    capsule = shutil.copytree(users, tmp_path / "capsule")
    assert (capsule / "recipe_source.py").read_text() == _MINE
    assert run_capsule(capsule, recipe=f"{capsule / 'recipe_source.py'}:mine").confirmed
    assert _run_script(capsule / "repro.py") == 0


def test_another_recipe_does_not_confirm_or_does_not_fit(users: Path) -> None:
    with pytest.raises((InputError, NotReplayableError)):
        run_capsule(users, recipe="healthy-mlp")


# -- hostile capsules --------------------------------------------------------------------------


class _Command:
    """Pickles into a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("part", ["state.pt", "batch.pt"])
def test_a_pickle_with_code_is_refused(capsule: Path, tmp_path: Path, part: str) -> None:
    trace = tmp_path / "ran"
    for payload in (pickle.dumps(_Command(trace)), None):
        if payload is not None:
            (capsule / part).write_bytes(payload)
        else:
            torch.save({"model": _Command(trace)}, capsule / part)
        with pytest.raises(InputError):
            run_capsule(capsule)
    assert not trace.exists()


@pytest.mark.parametrize("part", ["state.pt", "batch.pt", "capsule.json"])
def test_a_link_out_of_the_capsule_is_refused(capsule: Path, tmp_path: Path, part: str) -> None:
    outside = tmp_path / "secret"
    (capsule / part).rename(outside)
    (capsule / part).symlink_to(outside)
    with pytest.raises(InputError, match="link out of the capsule"):
        run_capsule(capsule)


def _edit(capsule: Path, change) -> None:
    path = capsule / "capsule.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "name",
    ["os:system", "../evil.py:recipe", "/tmp/evil.py", "evil.py:recipe", "builtins:exec"],
)
def test_a_recipe_that_run_json_names_is_never_imported(
    capsule: Path, tmp_path: Path, name: str
) -> None:
    trace = tmp_path / "ran"
    for place in (capsule / "evil.py", tmp_path / "evil.py"):
        place.write_text(f"import os; os.system('touch {trace}')")

    def change(data):
        data["manifest"]["recipe"] |= {"name": name, "entry_point": name, "file": name}

    _edit(capsule, change)
    with pytest.raises(NotReplayableError):
        run_capsule(capsule)
    assert not trace.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(step=-1),
        lambda data: data.update(step="six"),
        lambda data: data.update(rows=[{"step": "x"}]),
        lambda data: data.update(rows=7),
        lambda data: data.update(manifest={"parameters": 3}),
        lambda data: data.update(expected=[]),
        lambda data: data.update(format_version=99),
        lambda data: data.update(kind="something else"),
    ],
)
def test_damaged_facts_are_an_input_error(capsule: Path, change) -> None:
    _edit(capsule, change)
    with pytest.raises(InputError):
        run_capsule(capsule)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "{}", "[" * 100_000, "\x00" * 20])
def test_facts_that_are_no_json_object(capsule: Path, text: str) -> None:
    (capsule / "capsule.json").write_text(text)
    with pytest.raises(InputError):
        run_capsule(capsule)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("model"),
        lambda state: state.pop("beyond"),
        lambda state: state["beyond"].update(modes=[True]),
        lambda state: state["beyond"].update(buffers={"nothing": torch.zeros(1)}),
        lambda state: state["beyond"].update(gradients={"nothing": torch.zeros(1)}),
        lambda state: state["beyond"].update(stages=[{"stage": 9, "found_inf": {}}]),
        lambda state: state.update(rng={}),
        lambda state: state.update(format="pickle"),
    ],
)
def test_a_state_of_something_else_is_an_input_error(capsule: Path, damage) -> None:
    state = torch.load(capsule / "state.pt", weights_only=True)
    damage(state)
    torch.save(state, capsule / "state.pt")
    with pytest.raises(InputError):
        run_capsule(capsule)


def test_a_recipe_cannot_be_redirected_by_the_state(capsule: Path) -> None:
    """Values that a recipe keeps on itself never replace what it does."""
    state = torch.load(capsule / "state.pt", weights_only=True)
    state["beyond"]["recipe"] = {"build": "x", "batch": 3, "step": 4, "select": None, "config": 5}
    torch.save(state, capsule / "state.pt")
    assert run_capsule(capsule).confirmed


def test_a_fault_that_is_gone_is_not_confirmed(capsule: Path) -> None:
    batch = torch.load(capsule / "batch.pt", weights_only=True)
    torch.save([(inputs + 1.0, labels) for inputs, labels in batch], capsule / "batch.pt")
    verdict = run_capsule(capsule)
    assert not verdict.confirmed
    assert verdict.answer() == "not confirmed: in step 5 it is sound."
    assert any(line.startswith("bad place") for line in verdict.differences)


def test_what_is_no_capsule_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        run_capsule(tmp_path / "nothing")
    with pytest.raises(InputError, match="is missing"):
        run_capsule(tmp_path)
