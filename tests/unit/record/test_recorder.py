import json
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forensics.errors import RecordingStoppedError, UsageError
from forensics.record import step_output as module
from forensics.record.null_recorder import NullRecorder
from forensics.record.recorder import Recorder, columns_of
from forensics.runlog.activations import ActivationStore
from forensics.runlog.manifest import Ended, read_manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.steps_csv import read_steps


class Loop:
    """A loop of somebody else's that calls the recorder."""

    def __init__(self, out, *, scale: float | None = None, **kwargs) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scaler = GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        self.said: list[str] = []
        options = {"scaler": self.scaler, "max_norm": 1.0, "say": self.said.append, **kwargs}
        self.recorder = Recorder(out, self.model, self.optimizer, **options)

    def step(self, poison: float = 1.0, *, measure: bool = True) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 4)).square().mean()
        self.scaler.scale(loss).backward()
        self.model[0].weight.grad.mul_(poison)
        self.scaler.unscale_(self.optimizer)
        if measure:
            self.recorder.gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.recorder.end_step(loss)


class TestOwnLoop:
    def test_writes_a_run_that_can_be_read(self, tmp_path):
        loop = Loop(tmp_path / "run", snapshot_every=2)
        with loop.recorder:
            for _ in range(5):
                loop.step()
        steps = read_steps(tmp_path / "run" / "steps.csv")
        assert steps.step.tolist() == [0, 1, 2, 3, 4]
        assert steps["lr"].tolist() == [0.01] * 5
        assert (steps["grad_l2_post_clip"] <= 1.0 + 1e-6).all()
        assert steps.present("grad_l2_pre_clip").all()
        assert all(a < b for a, b in pairwise(steps["time_s"].tolist()))
        manifest = read_manifest(tmp_path / "run")
        assert manifest.post_clip == "measured"
        assert manifest.max_norm == 1.0
        assert manifest.optimizer["name"] == "adamw"
        assert manifest.ended == Ended("finished", 4)
        assert set(manifest.arrival_order) == {name for name, _ in loop.model.named_parameters()}
        assert manifest.columns == columns_of(1)
        store = ParamStore(tmp_path / "run" / "params")
        assert store.matrix("grad_l2").steps.tolist() == [0, 2, 4]
        assert store.matrix("value_l2", "optimizer").steps.tolist() == [2, 4]

    def test_a_step_without_gradients_gets_a_row(self, tmp_path):
        loop = Loop(tmp_path / "run")
        with loop.recorder as recorder:
            loop.step(measure=False)
            recorder.end_step(torch.tensor(math.nan))
        steps = read_steps(tmp_path / "run" / "steps.csv")
        assert steps.present("grad_l2_pre_clip").tolist() == [False, False]
        assert steps["skipped"].tolist() == [False, True]
        assert steps.columns["skip_reason"].text_at(1) == "nonfinite_loss"

    def test_the_same_gradients_applied_again_are_in_run_json_while_it_runs(self, tmp_path):
        loop = Loop(tmp_path / "run")
        with loop.recorder as recorder:
            loop.step()
            for step in (1, 2):
                loss = loop.model(torch.randn(8, 4)).square().mean()
                loss.backward()
                loop.optimizer.step()
                loop.optimizer.step()
                recorder.end_step(loss)
                seen = read_manifest(tmp_path / "run").loop
                assert seen.items() >= {"reapplied_steps": 1, "first_reapplied": 1}.items(), step
        known = read_manifest(tmp_path / "run")
        assert known.loop.items() >= {"reapplied_steps": 2, "first_reapplied": 1}.items()
        for first, count in ((3, 3), (1, 1)):  # resumed later; resumed where it began
            again = Loop(tmp_path / "run", manifest=known, first_step=first, lock=object())
            with again.recorder as recorder:
                loss = again.model(torch.randn(8, 4)).square().mean()
                loss.backward()
                again.optimizer.step()
                again.optimizer.step()
                recorder.end_step(loss)
            assert read_manifest(tmp_path / "run").loop["reapplied_steps"] == count

    def test_a_bad_step_is_on_disk_before_the_next_begins(self, tmp_path):
        loop = Loop(tmp_path / "run", scale=64.0, snapshot_every=100)
        for _ in range(3):
            loop.step()
        loop.step(math.inf)
        # Nothing is closed: this is what a kill -9 at this point would leave.
        steps = read_steps(tmp_path / "run" / "steps.csv")
        assert steps["skipped"].tolist() == [False, False, False, True]
        assert steps.columns["skip_reason"].text_at(3) == "nonfinite_grad:0.weight"
        rows = ParamStore(tmp_path / "run" / "params").first_nonfinite("param")
        assert rows.step == 3
        assert rows.names == ("0.weight",)
        loop.recorder.close()

    def test_a_norm_overflow_is_marked(self, tmp_path):
        loop = Loop(tmp_path / "run")
        with loop.recorder:
            loop.step(1e25)
        assert read_steps(tmp_path / "run" / "steps.csv")["norm_overflow"].tolist() == [True]

    def test_notes_and_tokens_fill_their_columns(self, tmp_path):
        extras = ("epoch", "val_loss", "tokens_per_s")
        loop = Loop(tmp_path / "run", extras=extras)
        with loop.recorder as recorder:
            recorder.note(epoch=0.5, val_loss=2.25, gpu=1)
            recorder.note(gpu=2)
            recorder.count_tokens(64)
            loop.step()
            loop.step()
        steps = read_steps(tmp_path / "run" / "steps.csv")
        assert steps.present("epoch").tolist() == [True, False]
        assert steps["val_loss"][0] == 2.25
        assert steps["tokens_per_s"][0] > 0
        assert loop.said == ["gpu: no column of this recording; name it in extras="]
        assert read_manifest(tmp_path / "run").missing == tuple(loop.said)

    def test_no_clip_no_norm_after_it(self, tmp_path):
        loop = Loop(tmp_path / "run", max_norm=None)
        with loop.recorder:
            loop.step()
        assert not read_steps(tmp_path / "run" / "steps.csv").has("grad_l2_post_clip")


class TestSnapshotsOfBadSteps:
    def test_a_dead_run_does_not_fill_the_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "MOST_BAD_SNAPSHOTS", 3)
        loop = Loop(tmp_path / "run", snapshot_every=4)
        with loop.recorder as recorder:
            for _ in range(10):
                recorder.end_step(math.nan)
            loop.step()
            recorder.end_step(math.nan)
        assert ParamStore(tmp_path / "run" / "params").matrix("value_l2").steps.tolist() == [
            0, 1, 2, 11,
        ]  # fmt: skip

    def test_hold_values_alone_where_backward_did_not_run(self, tmp_path):
        loop = Loop(tmp_path / "run", snapshot_every=0)
        with loop.recorder as recorder:
            recorder.end_step(math.inf)
        store = ParamStore(tmp_path / "run" / "params")
        assert store.matrix("value_l2").present.all()
        assert not store.matrix("grad_l2").present.any()


class TestActivations:
    def test_are_taken_with_the_regular_snapshots(self, tmp_path):
        loop = Loop(tmp_path / "run", snapshot_every=3, activations=True, scale=8.0)
        with loop.recorder:
            for _ in range(5):
                loop.step()
        store = ActivationStore(tmp_path / "run" / "activations")
        assert store.matrix("std").steps.tolist() == [0, 3]
        assert store.modules == ("0", "1", "2")
        assert store.matrix("grad_std").present.any(axis=1).tolist() == [True, False]
        assert not any(m._forward_hooks for m in loop.model.modules())


class TestEnding:
    def ended(self, tmp_path, error: BaseException) -> Ended | None:
        loop = Loop(tmp_path / "run")

        def run() -> None:
            with loop.recorder:
                loop.step()
                raise error

        with pytest.raises(type(error)):
            run()
        assert len(read_steps(tmp_path / "run" / "steps.csv")) == 1
        return read_manifest(tmp_path / "run").ended

    def test_by_an_exception(self, tmp_path):
        ended = self.ended(tmp_path, ValueError("bad data"))
        assert ended == Ended("exception", 1, "ValueError: bad data")

    def test_by_the_user(self, tmp_path):
        assert self.ended(tmp_path, KeyboardInterrupt()) == Ended("interrupted", 1)

    def test_by_the_alarm(self, tmp_path):
        error = RecordingStoppedError("too many skips")
        assert self.ended(tmp_path, error) == Ended("alarm", 0, "too many skips")

    def test_twice_is_once(self, tmp_path):
        loop = Loop(tmp_path / "run")
        loop.step()
        loop.recorder.close(Ended("interrupted", 0))
        loop.recorder.close()
        assert read_manifest(tmp_path / "run").ended == Ended("interrupted", 0)

    def test_gives_the_directory_and_the_hooks_back(self, tmp_path):
        loop = Loop(tmp_path / "run", activations=True)
        assert (tmp_path / "run" / "run.lock").exists()
        loop.recorder.close()
        assert not (tmp_path / "run" / "run.lock").exists()
        assert not loop.optimizer._optimizer_step_pre_hooks
        segments = read_manifest(tmp_path / "run").segments
        assert len(segments) == 1
        assert segments[0].ended is not None


class TestRefusals:
    def test_a_directory_that_holds_a_run(self, tmp_path):
        Loop(tmp_path / "run").recorder.close()
        with pytest.raises(UsageError, match="holds a run already"):
            Loop(tmp_path / "run")

    def test_a_directory_in_use(self, tmp_path):
        loop = Loop(tmp_path / "run")
        (tmp_path / "run" / "run.json").unlink()
        with pytest.raises(UsageError, match="in use by"):
            Loop(tmp_path / "run")
        loop.recorder.close()

    def test_an_unknown_column(self, tmp_path):
        with pytest.raises(UsageError, match="'speed'"):
            Loop(tmp_path / "run", extras=("speed",))


class TestDisk:
    def test_a_full_disk_costs_the_record_and_not_the_training(self, tmp_path, monkeypatch):
        loop = Loop(tmp_path / "run", snapshot_every=1)
        loop.step()

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("forensics.runlog.step_writer.StepWriter.write", full)
            patch.setattr("forensics.runlog.params.ParamWriter.append", full)
            loop.step()
            loop.step()
        missing = json.loads((tmp_path / "run" / "run.json").read_text())["missing"]
        assert "steps.csv" in missing[0]  # known while the run goes on
        loop.step()
        loop.recorder.close()
        assert read_steps(tmp_path / "run" / "steps.csv").step.tolist() == [0, 3]
        assert len(loop.said) == 2
        assert [line.split(":")[1].split()[0] for line in loop.said] == ["steps.csv", "params"]
        missing = read_manifest(tmp_path / "run").missing
        assert missing[0].startswith("steps.csv: 2 writes failed between steps 1 and 2")
        assert missing[1].startswith("params: 2 writes failed between steps 1 and 2")

    def test_a_step_log_that_cannot_be_opened(self, tmp_path):
        (tmp_path / "run" / "steps.csv").mkdir(parents=True)
        (tmp_path / "run" / "params").write_text("in the way")
        loop = Loop(tmp_path / "run")
        with loop.recorder:
            loop.step()
            loop.step()
        assert len(loop.said) == 2
        assert len(read_manifest(tmp_path / "run").missing) == 2

    def test_a_device_too_full_for_a_snapshot(self, tmp_path, monkeypatch):
        loop = Loop(tmp_path / "run", snapshot_every=1)

        def full(*args, **kwargs):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

        monkeypatch.setattr("forensics.record.snapshots.measure", full)
        with loop.recorder:
            loop.step()
            loop.step()
        assert len(read_steps(tmp_path / "run" / "steps.csv")) == 2
        assert "params: 2 writes failed" in read_manifest(tmp_path / "run").missing[0]


def test_columns_of_further_groups_come_before_the_extras():
    assert columns_of(3, ("param_l2",))[8:] == (
        "time_s",
        "norm_overflow",
        "grads_scaled",
        "lr_1",
        "lr_2",
        "param_l2",
    )


class TestNullRecorder:
    def test_has_every_public_method_of_the_recorder(self):
        public = {name for name in vars(Recorder) if not name.startswith("_")}
        mine = {name for name in dir(NullRecorder) if not name.startswith("_")}
        assert public - mine == {"next_step", "ended"}  # what only a recording can know

    def test_touches_no_tensor(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with NullRecorder() as recorder, torch.utils._python_dispatch.TorchDispatchMode():
            assert math.isnan(recorder.gradients())
            recorder.end_step(object())
            recorder.observe(object())
            recorder.write(object())
            recorder.note(epoch=1)
            recorder.count_tokens(3)
        assert list(tmp_path.iterdir()) == []

    def test_a_clip_by_its_norm_is_torchs_clip(self):
        """By NaN it would be the end of the training."""
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((4, 3), 9.0)).square().sum().backward()
        norm = NullRecorder(optimizer).gradients()
        assert norm == NullRecorder().gradients(optimizers=[optimizer])
        grads = [p.grad.clone() for p in model.parameters()]
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(norm))
        mine = [p.grad.clone() for p in model.parameters()]
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        assert norm == torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert all(torch.equal(a, p.grad) for a, p in zip(mine, model.parameters(), strict=True))


def test_how_it_ended_is_written_before_anything_is_waited_for(tmp_path, monkeypatch):
    """Other ranks that a last state needs may be gone, and a launcher is quick to kill."""
    loop, seen = Loop(tmp_path), []
    monkeypatch.setattr(
        loop.recorder._checkpoints,
        "end",
        lambda step, finished: seen.append(read_manifest(tmp_path).ended),
    )
    loop.step()
    with pytest.raises(RuntimeError), loop.recorder:
        raise RuntimeError("Connection closed by peer")
    assert [(ended.how, ended.step) for ended in seen] == [("exception", 1)]
    assert read_manifest(tmp_path).ended == seen[0]
