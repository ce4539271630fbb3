"""Checkpoints of a loop of one's own, and going on from them as if nothing had happened."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forensics.errors import InputError, UsageError
from forensics.record.checkpoints import list_checkpoints, load_checkpoint
from forensics.record.faults.own_loop import StepCounter
from forensics.record.null_recorder import NullRecorder
from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest
from forensics.runlog.steps_csv import read_steps
from tests.unit.record.own_loops import batch

STEPS = 14


class KilledError(Exception):
    """Stands for whatever ends a training."""


class Training:
    """Dropout, a scheduler, an average, a counter and two scalers: all that a resume can lose."""

    def __init__(self, path, *, seed=0, **options):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        parts = (self.model[0], self.model[2])
        self.optimizers = [torch.optim.AdamW(part.parameters(), 1e-2) for part in parts]
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizers[0], 0.9)
        self.scalers = [GradScaler("cpu", init_scale=2.0**k, growth_interval=3) for k in (8, 4)]
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.counter = StepCounter()
        self.path = path
        options = {
            "checkpoint_every": 4,
            "keep": "last:2",
            "resume": True,
            "extra": {"counter": self.counter},
            **options,
        }
        self.recorder = Recorder(
            path,
            self.model,
            self.optimizers,
            scaler=self.scalers,
            schedulers=self.schedule,
            ema=self.average,
            max_norm=1.0,
            say=lambda _: None,
            **options,
        )

    def run(self, dies_at: int | None = None, poison_at: int | None = None) -> int:
        with self.recorder as recorder:
            torch.rand(3)  # what a loader draws before the first step
            first = recorder.resume()
            for step in range(first, STEPS):
                if step == dies_at:
                    raise KilledError
                self.step(step, math.nan if step == poison_at else 1.0)
        return first

    def step(self, step: int, factor: float) -> None:
        losses = []
        for turn, (optimizer, scaler) in enumerate(zip(self.optimizers, self.scalers, strict=True)):
            self.model.zero_grad()
            loss = (self.model(batch(10 * step + turn)) - 1).square().mean() * factor
            scaler.scale(loss).backward()
            losses.append(loss.detach())
            scaler.unscale_(optimizer)
            self.recorder.gradients(optimizers=optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)
        self.counter.steps += 1
        self.recorder.end_step(sum(losses))


def columns(path):
    steps = read_steps(path / "steps.csv")
    names = (
        "step", "lr", "lr_1", "loss", "grad_l2_pre_clip", "grad_l2_post_clip", "scaler_scale",
    )  # fmt: skip
    return {name: steps[name].tolist() for name in names}


def saved(path):
    return [(info.step, info.healthy) for info in list_checkpoints(path / "checkpoints")]


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    first = Training(whole)
    assert first.run() == 0
    with pytest.raises(KilledError):
        Training(broken).run(dies_at=11)
    assert saved(broken)[-1] == (8, True)
    again = Training(broken, seed=7)
    assert again.run() == 8
    assert columns(broken) == columns(whole)
    for name, value in first.average.state_dict().items():
        assert torch.equal(again.average.state_dict()[name], value), name
    assert again.counter.steps == STEPS
    assert [s.get_scale() for s in again.scalers] == [s.get_scale() for s in first.scalers]
    manifest = read_manifest(broken)
    assert [segment.start_step for segment in manifest.segments] == [0, 8]
    assert (broken / "superseded" / "1" / "steps.csv").exists()


def test_the_state_before_the_first_step_and_the_last_state_are_saved(tmp_path):
    Training(tmp_path / "run", keep="last:9").run()
    assert saved(tmp_path / "run") == [(n, True) for n in (0, 4, 8, 12, STEPS)]
    state = load_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1].path)
    assert state["extra"].keys() == {"counter", "scaler_1"}
    assert len(state["schedulers"]) == 1
    assert read_manifest(tmp_path / "run").checkpoints["last_healthy"] == STEPS


def test_a_run_that_is_done_is_not_done_again(tmp_path):
    Training(tmp_path / "run").run()
    before = columns(tmp_path / "run")
    assert Training(tmp_path / "run").run() == STEPS
    assert columns(tmp_path / "run") == before


def test_the_state_before_trouble_stays_and_a_bad_one_replaces_nothing(tmp_path):
    training = Training(tmp_path / "run", keep="last:1")
    for optimizer in training.optimizers:  # a loop without a scaler applies what it gets
        optimizer.register_step_pre_hook(lambda o, *_: None)
    training.scalers[:] = [GradScaler("cpu", enabled=False)] * 2
    training.run(poison_at=5)
    found = saved(tmp_path / "run")
    assert (4, True) in found
    assert found[-1] == (STEPS, False)
    assert Training(tmp_path / "run", keep="last:1").run() == 4


def test_without_a_run_it_begins_and_without_a_state_it_begins_again(tmp_path):
    assert Training(tmp_path / "new").run() == 0
    with pytest.raises(KilledError):
        Training(tmp_path / "bare", checkpoint_every=0).run(dies_at=3)
    assert saved(tmp_path / "bare") == []
    assert Training(tmp_path / "bare").run() == 0
    assert columns(tmp_path / "bare")["step"] == list(range(STEPS))


def test_an_existing_run_is_refused_unless_resume_is_asked_for(tmp_path):
    Training(tmp_path / "run").run()
    with pytest.raises(UsageError, match="holds a run already"):
        Training(tmp_path / "run", resume=False)
    with pytest.raises(UsageError, match="by itself"):
        Training(tmp_path / "run", first_step=3)


def test_a_state_of_another_training_is_refused_and_nothing_is_changed(tmp_path):
    Training(tmp_path / "run").run()
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(InputError, match="model"):
        Recorder(tmp_path / "run", nn.Linear(2, 2), sgd_of(nn.Linear(2, 2)), resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert not (tmp_path / "run" / "run.lock").exists()


def test_a_part_that_cannot_be_saved_costs_the_checkpoint_and_not_the_training(tmp_path):
    class Odd:
        def state_dict(self):
            raise ValueError("not now")

    training = Training(tmp_path / "run", extra={"odd": Odd()})
    assert training.run() == 0
    assert columns(tmp_path / "run")["step"] == list(range(STEPS))
    missing = read_manifest(tmp_path / "run").missing
    assert any(m.startswith("checkpoints: 4 calls failed") for m in missing), missing


def test_no_states_unless_they_are_asked_for(tmp_path):
    training = Training(tmp_path / "run", checkpoint_every=0, resume=False)
    training.run()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_null_recorder_begins_at_the_beginning():
    assert NullRecorder().resume() == 0


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), 0.1)
