"""``forensics record`` as a user meets it."""

import io
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.record.config import Config
from forensics.runlog.manifest import read_manifest
from forensics.runlog.run import load_run

RECIPE = """
import torch
from torch import nn
from forensics.record.recipe import Training, recipe


@recipe("mine", "fits a line")
def my_recipe(config):
    model = nn.Linear(4, 1)

    def batch(step):
        draw = torch.Generator().manual_seed(1000 * config.seed + step)
        inputs = torch.randn(16, 4, generator=draw)
        return inputs, inputs.sum(1, keepdim=True)

    def loss(model, batch):
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    optimizer = torch.optim.SGD(model.parameters(), config.optimizer.lr)
    return Training(model, optimizer, loss, batch=batch)


@recipe("own-loop", "with a step of its own")
class OwnLoop(my_recipe):
    def step(self, training, micro_batches, recorder):
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = training.loss(training.model, micro_batches[0])
        loss.backward()
        recorder.gradients()
        optimizer.step()
        recorder.end_step(loss)
        if loss < self.config.data.get("raise_below", 0):
            raise ValueError("enough")
        return loss
"""


DOCS = Path(__file__).parents[2] / "docs" / "recording.md"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working directory with a user's recipes in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_train.py").write_text(RECIPE)
    return tmp_path


def record(*arguments):
    return main(["record", *arguments, "--device", "cpu"])


def told(capsys):
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


def test_it_ends_with_where_the_run_is_and_the_next_command(home, capsys):
    assert record("inf-gradient") == 0
    out, err = told(capsys)
    assert out == [
        "runs/inf-gradient: 20 steps recorded, 1 skipped",
        "next: forensics report runs/inf-gradient",
    ]
    assert err == []
    assert main(out[1].split()[2:]) == 0
    assert "step 5" in capsys.readouterr().out


def test_a_recipe_of_ones_own(home, capsys):
    assert record("my_train.py:my_recipe", "--steps", "12", "--out", "runs/a b") == 0
    out, _ = told(capsys)
    assert out[1] == "next: forensics report 'runs/a b'"
    manifest = read_manifest(home / "runs" / "a b")
    assert manifest.recipe["name"] == "mine"
    assert manifest.recipe["file"] == str(home / "my_train.py")
    assert len(load_run(home / "runs" / "a b").steps) == 12


def test_a_step_of_ones_own_that_raises_is_exit_4_and_recorded(home, capsys):
    code = record(
        "my_train.py:own-loop", "--set", "optimizer.lr=0.1", "--set", "data.raise_below=0.5"
    )
    assert code == 4
    out, err = told(capsys)
    assert out == []
    (line,) = err
    assert "ValueError: enough (my_train.py:" in line
    assert line.endswith("everything until then is recorded: forensics report runs/own-loop")
    run = load_run(home / "runs" / "own-loop")
    assert run.manifest.ended.how == "exception"
    assert run.steps["loss"][-1] < 0.5 <= run.steps["loss"][:-1].min()


def test_settings_come_from_defaults_then_file_then_set_then_options(home):
    (home / "run.toml").write_text(
        'seed = 5\nsteps = 3\nmax_norm = "none"\n[optimizer]\nlr = 0.5\neps = 1e-6\n'
    )
    given = ["--config", "run.toml", "--set", "optimizer.lr=0.25", "--set", "steps=4"]
    assert record("bad-sample", *given, "--steps", "2", "--max-norm", "3") == 0
    config = read_manifest(home / "runs" / "bad-sample").recipe["config"]
    assert (config["steps"], config["seed"], config["max_norm"]) == (2, 5, 3.0)
    assert (config["optimizer"]["lr"], config["optimizer"]["eps"]) == (0.25, 1e-6)
    assert config["data"]["fault_step"] == 30, "the recipe's own default"


def test_print_config_prints_what_config_takes(home, capsys):
    assert record("fp16-overflow", "--print-config", "--max-norm", "none", "--seed", "9") == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["max_norm"] == "none"
    (home / "run.toml").write_text(text)
    assert record("fp16-overflow", "--print-config", "--config", "run.toml") == 0
    assert capsys.readouterr().out == text
    assert not (home / "runs").exists()


def test_an_existing_run_is_refused_resumed_or_overwritten(home, capsys):
    assert record("healthy-mlp", "--steps", "6", "--checkpoint-every", "3", "--seed", "2") == 0
    first = load_run(home / "runs" / "healthy-mlp").steps["loss"].tolist()
    assert record("healthy-mlp", "--steps", "6") == 2
    assert "holds a run already" in capsys.readouterr().err
    # A resume takes the run's own settings: the seed need not be said again.
    assert record("healthy-mlp", "--resume", "--steps", "9") == 0
    longer = load_run(home / "runs" / "healthy-mlp").steps
    assert longer["loss"].tolist()[:6] == first
    assert len(longer) == 9
    capsys.readouterr()
    assert record("healthy-cnn", "--resume", "--out", "runs/healthy-mlp") == 2
    assert "is a run of healthy-mlp, not of healthy-cnn" in capsys.readouterr().err
    assert record("healthy-mlp", "--overwrite", "--steps", "4") == 0
    other = load_run(home / "runs" / "healthy-mlp").steps["loss"].tolist()
    assert len(other) == 4
    assert other != first[:4], "the recipe's own seed again"


def test_what_is_recorded_beside_the_rows(home):
    given = "--steps 8 --checkpoint-every 4 --keep last:1 --snapshot-every 4 --activations"
    assert record("bad-sample", *given.split(), "--extras", "update_l2, param_l2") == 0
    run = load_run(home / "runs" / "bad-sample")
    assert run.steps.has("update_l2")
    assert run.steps.has("param_l2")
    assert run.params.matrix("grad_l2").steps.tolist() == [0, 4]
    assert run.activations is not None
    assert [info.step for info in run.checkpoints][-1] == 8


def test_the_alarm_is_exit_3_and_everything_is_on_disk(home, capsys):
    code = record("lr-too-high", "--abort-on-skip-rate", "--checkpoint-every", "0")
    assert code == 3
    (line,) = told(capsys)[1][-1:]
    assert line.endswith("forensics report runs/lr-too-high")
    run = load_run(home / "runs" / "lr-too-high")
    assert run.manifest.ended.how == "alarm"
    assert len(run.steps) < 200


def test_the_list_names_every_recipe_and_those_of_a_file(home, capsys):
    assert record("--list") == 0
    lines, _ = told(capsys)
    assert {"healthy-fp16", "fp16-overflow"} <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 2 for line in lines)
    assert record("my_train.py", "--list") == 0
    assert told(capsys)[0] == ["mine      fits a line", "own-loop  with a step of its own"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name a RECIPE"),
        (["no-such"], "no recipe is called 'no-such'"),
        (["none.py:x"], "none.py: no such file"),
        (["my_train.py:zzz"], "my_train.py: no recipe is called 'zzz'; add one of :mine"),
        (["bad-sample", "--steps", "0"], "steps must be at least 1"),
        (["bad-sample", "--max-norm", "x"], 'max_norm must be a number or "none"'),
        (["bad-sample", "--set", "data.nois=1"], "did you mean data.noise?"),
        (["bad-sample", "--config", "none.toml"], "none.toml: no such file"),
        (["bad-sample", "--keep", "all"], "'all' is no policy"),
        (["bad-sample", "--extras", "zzz"], "no extra column is called 'zzz'"),
        (["bad-sample", "--resume", "--overwrite"], "exclude each other"),
        (["bad-sample", "--checkpoint-every", "-1"], "checkpoint_every must be 0 or more"),
        (["bad-sample", "--precision", "fp8"], "--precision"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(home, capsys, arguments, line):
    assert record(*arguments) == 2
    out, err = told(capsys)
    assert out == []
    assert len(err) == 1
    assert line in err[0]
    assert not (home / "runs").exists()


def process(code, cwd):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_without_torch_there_is_one_clear_line(home):
    hide = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "torch" else real(name, *a)
from forensics.cli import main
sys.exit(main(["record", "--list"]))
"""
    done = process(hide, home)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == (
        "forensics: recording needs torch, which is not installed (reports need none); "
        "pip install -c constraints.txt '.[torch]' in the checkout of forensics"
    )


def test_the_help_needs_no_torch(home):
    code = (
        "import sys\nfrom forensics.cli import main\nmain(['record', '--help'])\n"
        "assert 'torch' not in sys.modules, 'help loads torch'"
    )
    done = process(code, home)
    assert done.returncode == 0, done.stderr
    assert "--abort-on-skip-rate" in done.stdout


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self):
        return True


def test_a_bar_on_a_terminal(home, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert record("inf-gradient") == 0
    assert "recording inf-gradient" in terminal.getvalue()
    assert "20/20" in terminal.getvalue()
    assert capsys.readouterr().out.startswith("runs/inf-gradient: 20 steps recorded")


def test_ctrl_c_leaves_the_run_and_says_how_to_go_on(home, capsys, monkeypatch):
    from forensics.record.healthy import HealthyMlp

    real = HealthyMlp.batch

    def interrupt(self, step):
        if step == 5:
            raise KeyboardInterrupt
        return real(self, step)

    monkeypatch.setattr(HealthyMlp, "batch", interrupt, raising=False)
    assert record("healthy-mlp", "--steps", "9") == 130
    _, err = told(capsys)
    assert err[0] == (
        "forensics: runs/healthy-mlp: 5 steps recorded, 0 skipped; "
        "`forensics record healthy-mlp --out runs/healthy-mlp --resume` continues it"
    )
    assert json.loads((home / "runs/healthy-mlp/run.json").read_text())["ended"]["how"] == (
        "interrupted"
    )
    monkeypatch.setattr(HealthyMlp, "batch", real)
    assert main(err[0].split("`")[1].split()[1:]) == 0
    assert len(load_run(home / "runs" / "healthy-mlp").steps) == 9


def test_a_resume_goes_on_with_the_options_of_the_run(home, capsys):
    first = ("--steps", "20", "--checkpoint-every", "5", "--keep", "last:2,every:10")
    more = ("--snapshot-every", "4", "--extras", "update_l2", "--activations")
    assert record("healthy-mlp", *first, *more, "--out", "x") == 0
    assert record("healthy-mlp", "--out", "x", "--resume", "--steps", "40") == 0
    run = load_run(home / "x")
    assert run.steps.present("update_l2").all()
    assert {24, 28, 32, 36} <= set(run.params.matrix("grad_l2").steps.tolist())
    assert {10, 20, 30, 35, 40} <= {one.step for one in run.checkpoints}
    assert run.activations is not None
    # What the command line says anew wins, and the run remembers it.
    arguments = ("--resume", "--steps", "50", "--snapshot-every", "0")
    assert record("healthy-mlp", "--out", "x", *arguments) == 0
    kept = read_manifest(home / "x").recording
    assert (kept["snapshot_every"], kept["checkpoint_every"]) == (0, 5)
    assert max(load_run(home / "x").params.matrix("grad_l2").steps) == 36


def test_a_resume_of_a_run_that_does_not_say_takes_its_columns(home, capsys):
    assert record("healthy-mlp", "--steps", "6", "--extras", "param_l2", "--out", "x") == 0
    path = home / "x" / "run.json"
    manifest = json.loads(path.read_text())
    manifest["recording"] = {"keep": 5, "checkpoint_every": "often", "unheard": [1]}
    path.write_text(json.dumps(manifest))
    assert record("healthy-mlp", "--out", "x", "--resume", "--steps", "9") == 0
    assert load_run(home / "x").steps.present("param_l2").all()


def test_a_setting_that_the_recipe_does_not_read_is_said(home, capsys):
    (home / "deaf.py").write_text(RECIPE.replace("config.optimizer.lr", "0.05"))
    assert record("deaf.py:mine", "--steps", "2", "--set", "optimizer.lr=0.5") == 0
    _, err = told(capsys)
    assert [line for line in err if "does not read optimizer.lr" in line] == [err[-1]]


def documented(language):
    """The code blocks of the page on recording."""
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_the_code_in_the_documentation_runs(home, monkeypatch):
    monkeypatch.syspath_prepend(home)
    for block in documented("python"):
        name = re.match(r"# (\S+)\n", block)[1]
        (home / name).write_text(block)
    for recipe in ("my_train.py:my_recipe", "my_class.py", "my_loop.py", "my_loader.py"):
        out = home / "runs" / Path(recipe).stem
        given = ["--steps", "40", "--set", "optimizer.lr=0.05", "--out", str(out)]
        assert record(recipe, *given) == 0
        steps = load_run(out).steps
        assert steps["loss"][-5:].mean() < steps["loss"][:5].mean()
        assert not steps["skipped"].any()
    assert record("my_loop.py", "--precision", "fp16", "--steps", "5") == 0
    runpy.run_path(str(home / "my_script.py"), run_name="__main__")
    assert len(load_run(home / "runs" / "script").steps) == 50


def test_the_settings_in_the_documentation_are_valid():
    run_toml, package_toml = documented("toml")
    config = Config.from_dict(tomllib.loads(run_toml))
    assert (config.precision, config.schedule.name) == ("fp16", "cosine")
    assert "forensics.recipes" in tomllib.loads(package_toml)["project"]["entry-points"]


def test_it_ends_with_what_could_not_be_recorded(home, capsys):
    (home / "runs" / "x").mkdir(parents=True)
    (home / "runs" / "x" / "params").write_text("a file where a folder should be")
    assert record("inf-gradient", "--out", "runs/x") == 0
    out, _ = told(capsys)
    assert out[0] == "runs/x: 20 steps recorded, 1 skipped"
    assert out[1].startswith("not recorded: params: 2 writes failed between steps 0 and 5 (")
    assert out[2] == "next: forensics report runs/x"
