"""A loop that steps its schedule an epoch: its recipe has none, and its states are put back."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from forensics.diagnose.bisection_result import BisectStatus
from forensics.record.recorder import Recorder
from forensics.replay.bisect import bisect_run

BAD_SAMPLE = 11
RECIPE = """
import sys
sys.path.insert(0, {folder!r})
from torch import nn, optim
from forensics import Training, batches_of, recipe
from tests.unit.replay.test_epoch_schedule import loss_of, make_loader, net

@recipe("mine", "fits a line")
def mine(config):
    model = net()
    optimizers = [optim.SGD(model.parameters(), 0.05) for _ in range({optimizers})]
    return Training(model, optimizers, loss_of, batch=batches_of(make_loader))
"""


def make_loader():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 2, generator=draw)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    inputs[BAD_SAMPLE] = math.nan
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def record(folder: Path) -> Path:
    torch.manual_seed(5)
    model, loader = net(), make_loader()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with Recorder(folder, model, optimizer, schedulers=schedule, checkpoint_every=2) as recorder:
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                recorder.gradients(loss)
                optimizer.step()
                recorder.end_step()
            schedule.step()
    return folder


def bisected(folder: Path, optimizers: int):
    file = folder / "mine.py"
    root = str(Path(__file__).parents[3])
    file.write_text(RECIPE.format(folder=root, optimizers=optimizers))
    return bisect_run(record(folder / "run"), recipe=f"{file}:mine", what_if=False)


def test_the_replay_is_faithful_and_names_the_sample(tmp_path):
    bad = [inputs.isnan().any(1) for inputs, _ in make_loader()]
    ((first, place),) = torch.stack(bad).nonzero().tolist()
    assert first > 1
    result = bisected(tmp_path, 1)
    assert result.status is BisectStatus.LOCATED
    assert (result.first_bad_step, result.samples) == (first, (place,))
    assert (result.departure, result.replayed_from) == (None, first - first % 2)
    assert any("hold a schedule and the recipe has none" in note for note in result.notes)


def test_what_keeps_a_state_from_being_put_back_is_told(tmp_path):
    result = bisected(tmp_path, 2)
    (note,) = [note for note in result.notes if "cannot be put back" in note]
    assert "has 1 optimizers, the recipe 2" in note
