"""States kept in memory, and large ones in a file: put back bit for bit, again and again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forensics.record.config import Config
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.recipe import Recipe, Training
from forensics.replay.rerun import tensor_file as module
from forensics.replay.rerun.memory_state import capture, let_go, put_back, put_back_update
from forensics.replay.rerun.tensor_file import FiledTensor, TensorFile, tensor_file


class Kept(Recipe):
    """Never trained by itself; the tests step its parts."""

    defaults = Config()

    def build(self, config: Config) -> Training:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return Training(model, optimizer, lambda m, b: m(b).square().mean())

    def batch(self, step: int) -> list[Any]:
        return [torch.randn(8, 64)]


def stepped(training: Training) -> None:
    training.optimizers[0].zero_grad()
    training.loss(training.model, torch.randn(8, 64)).backward()
    training.optimizers[0].step()
    training.ema.update(training.model)


def everything(training: Training) -> list[Tensor]:
    """All tensors of a training, copied."""
    held = [p.grad for p in training.model.parameters() if p.grad is not None]
    held += [*training.model.state_dict().values(), *training.ema.shadow.values()]
    for state in training.optimizers[0].state.values():
        held += state.values()
    return [tensor.detach().clone() for tensor in held]


@pytest.fixture(params=["memory", "file"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Training:
    if request.param == "file":
        monkeypatch.setattr(module, "LARGE_STATE", 0)
        monkeypatch.setattr(module, "_LARGE", 64)
        monkeypatch.setattr(module, "_CHUNK", 1000)  # a tensor takes several writes and reads
    training = Kept(Config()).build(Config())
    training.ema = ExponentialMovingAverage(training.model, 0.9)
    stepped(training)
    return training


@pytest.mark.parametrize("emptied", [False, True])
def test_a_state_can_be_put_back_again_and_again(made: Training, emptied: bool) -> None:
    recipe = Kept(Config())
    was = everything(made)
    state = capture(made, recipe, 1, gradients=True)
    ways = []
    for _ in range(2):
        stepped(made)
        ways.append(everything(made))
        assert not all(map(torch.equal, ways[-1], was))
        if emptied:
            let_go(made)
            assert not made.optimizers[0].state
        put_back(made, recipe, state)
        assert all(map(torch.equal, everything(made), was))
    assert all(map(torch.equal, *ways))  # the random numbers are put back, too


def test_an_update_is_put_back_alone(made: Training) -> None:
    state = capture(made, Kept(Config()), 1, gradients=False)
    was = made.model.state_dict()["0.weight"].clone()
    moment = made.optimizers[0].state[made.model[0].weight]["exp_avg"].clone()
    running = made.model[1].running_mean.clone()
    stepped(made)
    put_back_update(made, state)
    assert torch.equal(made.model[0].weight, was)
    assert torch.equal(made.optimizers[0].state[made.model[0].weight]["exp_avg"], moment)
    assert not torch.equal(made.model[1].running_mean, running)


def test_a_parameter_of_another_dtype_gets_its_own_back(made: Training) -> None:
    recipe = Kept(Config())
    state = capture(made, recipe, 1, gradients=False)
    was = made.model[0].weight.detach().clone()
    made.model[0].weight.data = made.model[0].weight.data.double()
    put_back(made, recipe, state)
    assert made.model[0].weight.dtype is torch.float32
    assert torch.equal(made.model[0].weight, was)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_every_dtype_comes_back_as_it_was(dtype: torch.dtype) -> None:
    file = tensor_file(module.LARGE_STATE)
    assert file is not None
    values = (torch.randn(512, 300) * 3).to(dtype)
    kept = file.keep(values)
    assert isinstance(kept, FiledTensor)
    assert torch.equal(kept.clone(), values)
    turned = torch.zeros(300, 512, dtype=dtype).T
    kept.copy_to(turned)
    assert torch.equal(turned, values)


def test_small_and_odd_tensors_stay_in_memory() -> None:
    file = tensor_file(module.LARGE_STATE)
    assert file is not None
    for odd in (torch.ones(8), torch.ones(400, 400).T[1:], torch.eye(400).to_sparse()):
        assert isinstance(file.keep(odd), Tensor)


def test_a_small_state_and_a_full_disk_need_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensor_file(module.LARGE_STATE - 1) is None
    assert tensor_file(1 << 60) is None


def test_a_disk_that_fills_up_costs_memory_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    file = tensor_file(module.LARGE_STATE)
    assert file is not None
    first, second, third = (torch.randn(200, 200) for _ in range(3))
    kept = file.keep(first)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert torch.equal(file.keep(second), second)
    assert torch.equal(file.keep(third).clone(), third)
    assert torch.equal(kept.clone(), first)


def test_the_file_has_no_name_and_goes_with_its_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    file = tensor_file(module.LARGE_STATE)
    assert isinstance(file, TensorFile)
    kept = file.keep(torch.randn(200, 200))
    descriptor = file._fd
    assert not list(tmp_path.iterdir())
    del file
    os.fstat(descriptor)  # a tensor still needs it
    del kept
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
