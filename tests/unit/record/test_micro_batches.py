"""Losses of several micro-batches: added up where they are told, known to be one where not."""

import math

import pytest
import torch
from torch import nn

from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest
from forensics.runlog.steps_csv import read_steps


def train(out, give, *, steps: int = 3, poison: int = -1, several: bool = False):
    """Two micro-batches a step; ``give(recorder, losses)`` says what the recorder is told."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    parts = [[model.weight], [model.bias]] if several else [[model.weight, model.bias]]
    optimizers = [torch.optim.SGD(part, 0.1) for part in parts]
    with Recorder(out, model, optimizers) as recorder:
        for step in range(steps):
            losses = []
            for micro in range(2):
                loss = model(torch.randn(4, 2)).square().mean() / 2
                if 2 * step + micro == poison:
                    loss = loss * math.nan
                loss.backward()
                losses.append(loss)
            give(recorder, losses)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            recorder.end_step()
    return read_steps(out / "steps.csv")["loss"].tolist(), read_manifest(out).loop


def add_each(recorder, losses) -> None:
    for loss in losses:
        recorder.add_loss(loss)
    recorder.gradients()


def test_the_row_has_the_sum_of_what_went_backward(tmp_path):
    given, loop = train(tmp_path / "a", add_each)
    means, _ = train(tmp_path / "b", lambda r, losses: r.gradients(sum(x.item() for x in losses)))
    assert given == pytest.approx(means, rel=1e-6)
    assert loop == {}


def test_a_bad_micro_batch_that_is_not_the_last_shows_in_the_loss(tmp_path):
    losses, _ = train(tmp_path, add_each, poison=2)
    assert [math.isnan(loss) for loss in losses] == [False, True, True]


def test_the_loss_of_the_last_micro_batch_is_known_to_be_one_of_several(tmp_path):
    losses, loop = train(tmp_path, lambda r, losses: r.gradients(losses[-1] * 2), poison=2)
    assert math.isfinite(losses[1])
    assert loop == {"one_loss_steps": 3, "first_one_loss": 0}


def test_a_sum_that_the_loop_keeps_is_none_of_several(tmp_path):
    _, loop = train(tmp_path, lambda r, losses: r.gradients(sum(x.detach() for x in losses)))
    assert loop == {}


def test_backwards_of_several_optimizers_are_no_micro_batches(tmp_path):
    _, loop = train(tmp_path, lambda r, losses: r.gradients(losses[-1]), several=True)
    assert loop == {}


def test_what_is_no_loss_costs_the_loop_nothing(tmp_path):
    said: list[str] = []
    model = nn.Linear(2, 1)
    with Recorder(tmp_path, model, torch.optim.SGD(model.parameters(), 0.1), say=said.append) as r:
        r.add_loss("much")
        model(torch.randn(4, 2)).sum().backward()
        r.gradients()
        r.end_step()
    assert len(said) == 1
    assert not read_steps(tmp_path / "steps.csv").present("loss").any()
