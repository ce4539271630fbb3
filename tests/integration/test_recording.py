"""Real processes that record: killed, interrupted, resumed, and on a full disk."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import nn

from forensics.errors import RecordingStoppedError, TrainingRaisedError, UsageError
from forensics.record.config import Config
from forensics.record.recipe import Recipe, Training, recipe
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.runlog.activations import ActivationStore
from forensics.runlog.manifest import Ended, read_manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.run import load_run
from forensics.runlog.steps_csv import read_steps
from tests.integration.toy_training import BAD_STEP, CONFIG, EXTRAS, main

SCRIPT = Path(__file__).with_name("toy_training.py")
OPTIONS = {"checkpoint_every": 7, "snapshot_every": 4, "extras": EXTRAS, "activations": True}


def process(out: Path, **told) -> subprocess.CompletedProcess[str]:
    """Record in a process of its own, that may be killed."""
    command = [sys.executable, str(SCRIPT), str(out), json.dumps({**OPTIONS, **told})]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def record(out: Path, **told) -> tuple[int, str]:
    """Record in this process: the exit code, and what was said."""
    said = io.StringIO()
    with redirect_stdout(said):
        code = main(str(out), **{**OPTIONS, **told})
    return code, said.getvalue()


def rows(out: Path) -> list[list[str]]:
    """The rows as text, but for the clock."""
    with (out / "steps.csv").open(newline="") as file:
        table = list(csv.reader(file))
    clock = table[0].index("time_s")
    return [row[:clock] + row[clock + 1 :] for row in table]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, said = record(out)
    assert code == 0
    assert len(said.splitlines()) == 1, said
    return out


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """The same, killed between a checkpoint (14) and the last row it wrote (18)."""
    out = tmp_path_factory.mktemp("killed") / "run"
    assert process(out, kill_after=18).returncode == -9
    return out


def snapshot_values(out: Path) -> dict[str, list[list[float]]]:
    store = ParamStore(out / "params")
    return {
        f"{kind}/{name}": store.matrix(name, kind).values.tolist()
        for kind in ("param", "buffer", "ema", "optimizer")
        for name in ("value_l2", "grad_l2", "update_l2")
        if (out / "params").is_dir()
    }


class TestWhole:
    def test_tells_what_it_was(self, whole):
        manifest = read_manifest(whole)
        assert manifest.ended == Ended("finished", CONFIG.steps - 1)
        assert manifest.recipe["config"] == CONFIG.to_dict()
        assert (manifest.precision, manifest.autocast_device) == ("fp16", "cpu")
        assert manifest.scaler.init_scale == 2.0**20
        assert manifest.seeds["torch"] == 3
        assert manifest.missing == ()
        assert manifest.threads == 1

    def test_has_calibrated_and_met_the_bad_batch(self, whole):
        table = read_steps(whole / "steps.csv")
        reasons = [table.columns["skip_reason"].text_at(i) for i in range(len(table))]
        assert reasons[BAD_STEP] == "nonfinite_loss"
        assert any(reason.startswith("nonfinite_grad:") for reason in reasons[:8])
        assert 2 <= int(table["skipped"].sum()) < 20
        assert not reasons[-1]

    def test_every_bad_step_has_a_snapshot_beside_the_regular_ones(self, whole):
        table = read_steps(whole / "steps.csv")
        bad = set(table.step[table["skipped"]].tolist())
        expected = sorted(bad | set(range(0, CONFIG.steps, 4)))
        assert ParamStore(whole / "params").matrix("value_l2").steps.tolist() == expected
        assert ActivationStore(whole / "activations").matrix("std").steps.tolist() == list(
            range(0, CONFIG.steps, 4)
        )

    def test_checkpoints_are_healthy_and_named_in_the_manifest(self, whole):
        kept = load_run(whole).checkpoints
        assert [info.step for info in kept][-3:] == [21, 28, 30]
        assert all(info.healthy for info in kept)
        assert read_manifest(whole).checkpoints["last_healthy"] == 30
        assert 14 in [info.step for info in kept]  # pinned: the newest before the bad step


class TestKilled:
    def test_leaves_every_flushed_row_and_snapshot_readable(self, killed, whole):
        assert rows(killed) == rows(whole)[: 1 + 19]
        assert (killed / "steps.csv").read_bytes().endswith(b"\n")
        steps = ParamStore(killed / "params").matrix("value_l2").steps.tolist()
        assert steps == [s for s in ParamStore(whole / "params").matrix("value_l2").steps if s < 19]
        manifest = read_manifest(killed)
        assert manifest.running
        assert manifest.arrival_order == read_manifest(whole).arrival_order

    def test_is_refused_without_resume(self, killed):
        code, said = record(killed)
        assert code == 2
        assert "--resume continues it" in said


@pytest.fixture(scope="module")
def resumed(killed, tmp_path_factory) -> Path:
    """The killed run, resumed to its end."""
    out = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(killed, out)
    assert record(out, resume=True)[0] == 0
    return out


class TestResumed:
    def test_gives_the_rows_of_an_uninterrupted_run_bit_for_bit(self, resumed, whole):
        assert rows(resumed) == rows(whole)

    def test_gives_its_snapshots_too(self, resumed, whole):
        assert json.dumps(snapshot_values(resumed)) == json.dumps(snapshot_values(whole))

    def test_gives_its_last_state_too(self, resumed, whole):
        ours, theirs = (
            torch.load(out / "checkpoints" / "step-00000030.pt", weights_only=True)
            for out in (resumed, whole)
        )
        for name, value in theirs["model"].items():
            assert torch.equal(ours["model"][name], value), name
        assert ours["scaler"] == theirs["scaler"]
        assert ours["alarm"] == theirs["alarm"]

    def test_keeps_what_it_did_again(self, resumed, killed):
        grave = resumed / "superseded" / "1"
        assert rows(grave)[1:] == rows(killed)[1 + 14 :]
        manifest = read_manifest(resumed)
        assert [(s.start_step, s.reason) for s in manifest.segments] == [
            (0, "start"),
            (14, "resume"),
        ]
        assert manifest.ended == Ended("finished", CONFIG.steps - 1)

    def test_another_columns_set_is_refused_and_nothing_is_changed(self, killed, tmp_path):
        out = tmp_path / "run"
        shutil.copytree(killed, out)
        code, said = record(out, resume=True, extras=["param_l2"])
        assert code == 2
        assert "was recorded with other columns" in said
        assert rows(out) == rows(killed)
        assert not (out / "superseded").exists()

    def test_a_finished_run_is_left_as_it_is(self, resumed, whole):
        code, said = record(resumed, resume=True)
        assert code == 0
        assert "all 30 steps are done already" in said
        assert rows(resumed) == rows(whole)


def test_overwrite_begins_anew(killed, whole, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(killed, out)
    assert record(out, overwrite=True)[0] == 0
    assert rows(out) == rows(whole)
    assert not (out / "superseded").exists()


def test_ctrl_c_leaves_a_whole_run_that_says_so(whole, tmp_path):
    out = tmp_path / "run"
    assert record(out, interrupt_after=9)[0] == 130
    assert rows(out) == rows(whole)[: 1 + 10]
    assert read_manifest(out).ended.how == "interrupted"
    assert not (out / "run.lock").exists()
    assert record(out, resume=True)[0] == 0
    assert rows(out) == rows(whole)


def test_a_full_disk_costs_the_record_and_not_the_training(whole, tmp_path):
    # No file may grow beyond 3,000 bytes: rows, snapshots, run.json and checkpoints all hit it.
    out = tmp_path / "run"
    done = process(out, file_limit=3000)
    assert done.returncode == 0, done.stderr
    for kind in ("steps.csv", "params", "checkpoints", "run.json"):
        assert done.stdout.count(f": {kind} cannot be written") == 1, done.stdout
    written = rows(out)
    assert written == rows(whole)[: len(written)]
    assert 5 < len(written) < 30
    assert not list(out.rglob("*.tmp"))


# -- in this process --------------------------------------------------------------------------


class Small(Recipe):
    """A linear layer; subclasses break something."""

    def build(self, config: Config) -> Training:
        model = nn.Linear(2, 1)
        return Training(
            model, [torch.optim.SGD(model.parameters(), lr=0.01)], lambda m, b: m(b).square().mean()
        )

    def batch(self, step: int):
        return [torch.full((4, 2), 0.1 * (step + 1))]


def run(kind: type[Recipe], out: Path, config: Config | None = None, **options):
    made = recipe("small", "a test")(kind)
    said: list[str] = []
    config = config or Config(steps=10, device="cpu")
    ended = record_run(made(), config, RecordOptions(out, **options), say=said.append)
    return ended, said


class TestTrainingThatRaises:
    class Raising(Small):
        def batch(self, step: int):
            if step == 6:
                raise OSError("the data are gone")
            return super().batch(step)

    def test_is_recorded_as_such(self, tmp_path):
        with pytest.raises(TrainingRaisedError, match="step 6: OSError: the data are gone") as info:
            run(self.Raising, tmp_path)
        assert info.value.exit_code == 4
        assert isinstance(info.value.__cause__, OSError)
        assert len(read_steps(tmp_path / "steps.csv")) == 6
        ended = read_manifest(tmp_path).ended
        assert (ended.how, ended.step) == ("exception", 6)
        assert "OSError: the data are gone (test_recording.py:" in ended.message

    def test_while_it_is_built_leaves_no_run(self, tmp_path):
        class Unbuildable(Small):
            def build(self, config: Config) -> Training:
                raise KeyError("width")

        with pytest.raises(TrainingRaisedError, match="building small: KeyError"):
            run(Unbuildable, tmp_path / "run")
        assert list((tmp_path / "run").iterdir()) == []


class TestAlarm:
    class Dead(Small):
        def batch(self, step: int):
            return [torch.full((4, 2), math.nan if step >= 20 else 0.1)]

    def test_warns_and_goes_on(self, tmp_path):
        _, said = run(self.Dead, tmp_path, Config(steps=200, device="cpu"))
        assert [line for line in said if "all skipped" in line] == [
            "step 119: the last 100 steps were all skipped"
        ]
        assert len(read_steps(tmp_path / "steps.csv")) == 200

    def test_stops_where_it_is_told_to(self, tmp_path):
        with pytest.raises(RecordingStoppedError, match="all skipped") as info:
            run(self.Dead, tmp_path, Config(steps=200, device="cpu"), abort_on_skip_rate=True)
        assert info.value.exit_code == 3
        assert len(read_steps(tmp_path / "steps.csv")) == 120
        assert read_manifest(tmp_path).ended.how == "alarm"
        healthy = {info.step: info.healthy for info in load_run(tmp_path).checkpoints}
        assert healthy == {0: True, 100: False, 120: False}  # finite, but nothing was learnt
        assert read_manifest(tmp_path).checkpoints["last_healthy"] == 0


class TestOwnStep:
    def test_may_leave_everything_to_the_loop(self, tmp_path):
        class Own(Small):
            def step(self, training, micro_batches, recorder):
                (optimizer,) = training.optimizers
                optimizer.zero_grad()
                loss = training.loss(training.model, micro_batches[0])
                loss.backward()
                optimizer.step()
                return loss

        run(Own, tmp_path)
        table = read_steps(tmp_path / "steps.csv")
        assert table["skipped"].tolist() == [False] * 10
        assert not table.has("grad_l2_pre_clip")
        assert table.present("grad_l2_post_clip").all()
        assert read_manifest(tmp_path).post_clip == "measured"

    def test_forgetting_update_is_recorded_with_what_torch_said(self, tmp_path):
        class Forgetful(Small):
            def step(self, training, micro_batches, recorder):
                (optimizer,) = training.optimizers
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16):
                    loss = training.loss(training.model, micro_batches[0])
                training.scaler.scale(loss).backward()
                training.scaler.unscale_(optimizer)
                recorder.gradients()
                training.scaler.step(optimizer)
                recorder.end_step(loss)

        config = Config(steps=5, device="cpu", precision="fp16")
        with pytest.raises(TrainingRaisedError, match=r"unscale_\(\) is being called after step"):
            run(Forgetful, tmp_path, config)
        assert len(read_steps(tmp_path / "steps.csv")) == 1


def test_a_poisoned_buffer_makes_the_checkpoint_unhealthy_and_resume_goes_back_before_it(tmp_path):
    class Poisoned(Small):
        def build(self, config: Config) -> Training:
            training = super().build(config)
            training.model.register_buffer("seen", torch.zeros(1))
            training.loss = self.loss
            return training

        def loss(self, model, batch):
            model.seen += batch.mean()  # as BatchNorm does: no skipped step takes it back
            return model(batch).square().mean()

        def batch(self, step: int):
            return [torch.full((4, 2), math.nan if step == 7 else 0.1)]

    run(Poisoned, tmp_path, checkpoint_every=3)
    kept = load_run(tmp_path).checkpoints
    assert {info.path.name: info.healthy for info in kept} == {
        "step-00000000.pt": True,
        "step-00000003.pt": True,
        "step-00000006.pt": True,
        "step-00000009.nonfinite.pt": False,
        "step-00000010.nonfinite.pt": False,
    }
    before = rows(tmp_path)
    run(Poisoned, tmp_path, checkpoint_every=3, resume=True)
    assert read_manifest(tmp_path).segments[-1].start_step == 6
    assert rows(tmp_path) == before


def test_log_every_leaves_the_rows_in_between_empty(tmp_path):
    run(Small, tmp_path, extras=("param_l2", "param_digest"), log_every=4)
    table = read_steps(tmp_path / "steps.csv")
    expected = [step % 4 == 0 for step in range(10)]
    assert table.present("param_l2").tolist() == expected
    assert table.present("param_digest").tolist() == expected
    assert table.present("loss").all()


def test_a_mismatch_of_precision_and_scaler_changes_nothing(tmp_path):
    class Mixed(Small):
        def build(self, config: Config) -> Training:
            training = super().build(config)
            training.scaler = torch.amp.GradScaler("cpu")
            return training

    run(Small, tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="GradScaler with fp32"):
        run(Mixed, tmp_path, overwrite=True)
    assert sorted(tmp_path.iterdir()) == before
