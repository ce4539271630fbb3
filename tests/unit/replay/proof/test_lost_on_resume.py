"""Resumes that restored less than the state holds, found by replaying without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus
from forensics.replay.bisect import bisect_run
from forensics.replay.proof.lost_on_resume import find_lost, lost_origin
from forensics.replay.session import Session
from tests.unit.replay.recordings import open_run, record

FORGETFUL = """
import copy
import torch
from torch import nn
from forensics import Config, Training, recipe
from forensics.record.recipe import Recipe

@recipe("{name}", "forgets at step 5 of the recording")
class Forgetful(Recipe):
    defaults = Config(steps=12, max_norm=None)

    def build(self, config):
        model = nn.Sequential(nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.done, self.begin = 0, copy.deepcopy(schedule.state_dict())
        return Training(
            model, optimizer, lambda m, b: m(b).pow(2).mean(), schedulers=schedule, scaler=scaler
        )

    def batch(self, step):
        self.now = step
        return [torch.randn(8, 4, generator=torch.Generator().manual_seed(step))]

    def forget(self, training):
        {forget}

    def step(self, training, batches, recorder):
        if self.now == 5 and not recorder.replaying:
            self.forget(training)
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = training.loss(training.model, batches[0])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        scaler.step(optimizer)
        scaler.update()
        training.schedulers[0].step()
        recorder.end_step(loss)
        return loss
"""
LOSSES = {
    "optimizer": "training.optimizers[0].state.clear()",
    "scaler": "training.scaler._scale.fill_(8.0); training.scaler._growth_tracker.zero_()",
    "schedule": (
        "training.schedulers[0].load_state_dict(self.begin); "
        "training.optimizers[0].param_groups[0]['lr'] = 0.01"
    ),
    "weights": "training.model[0].weight.data.mul_(1.5)",
}


def forgetful(home: Path, name: str) -> Session:
    file = home / f"{name}.py"
    file.write_text(FORGETFUL.format(name=name, forget=LOSSES[name]))
    record(f"{file}:{name}", home / "run", steps=12)
    return open_run(home / "run", recipe=f"{file}:{name}")


def departure_of(session: Session) -> int:
    session.start()
    while True:
        replayed = session.run_step()
        if session.departure(replayed) is not None:
            return replayed.step


@pytest.mark.parametrize(
    ("name", "what", "phase"),
    [
        ("optimizer", "the optimizer's state", "optimizer"),
        ("scaler", "the loss scaler's state", "outside"),
        ("schedule", "the schedule's state", "scheduler"),
    ],
)
def test_the_part_that_was_lost_is_the_one_whose_loss_gives_the_record(tmp_path, name, what, phase):
    with forgetful(tmp_path, name) as session:
        lost = find_lost(session, departure_of(session))
    assert (lost.step, lost.what, lost.phase) == (5, what, phase)
    assert lost.rows >= 4
    assert not lost.seam
    origin = lost_origin(lost)
    assert (origin.operator, origin.phase) == ("resume", phase)
    assert f"at step 5 lost {what}" in origin.summary


def test_changed_weights_are_no_lost_state(tmp_path):
    with forgetful(tmp_path, "weights") as session:
        assert find_lost(session, departure_of(session)) is None


def test_a_bisection_names_the_lost_part_although_no_number_is_bad(tmp_path):
    with forgetful(tmp_path, "optimizer"):
        pass
    file = tmp_path / "optimizer.py"
    result = bisect_run(tmp_path / "run", recipe=f"{file}:optimizer", what_if=False)
    assert result.status is BisectStatus.LOCATED
    assert (result.first_bad_step, result.origin.operator) == (5, "resume")
    assert result.reproduces is False
