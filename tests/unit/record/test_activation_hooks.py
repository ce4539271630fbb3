import math

import pytest
import torch
from torch import nn

from forensics.record.activation_hooks import ActivationHooks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(2, 2, bias=False)
        self.act = nn.ReLU()
        self.memory = nn.LSTM(2, 3)
        with torch.no_grad():
            self.twice.weight.copy_(2.0 * torch.eye(2))

    def forward(self, x):
        return self.memory(self.act(self.twice(x)))[0]


def collected(model, inputs, *, gradients=False, scale=1.0, factor=1.0):
    hooks = ActivationHooks(model)
    hooks.arm(gradients=gradients)
    for value in inputs:
        (model(value).sum() * factor).backward()
    names, stats = hooks.collect(scale)
    return {name: {key: values[i] for key, values in stats.items()} for i, name in enumerate(names)}


def test_statistics_are_those_of_each_output_in_forward_order():
    model = nn.Sequential(nn.Identity(), Block())
    rows = collected(model, [torch.tensor([[1.0, -3.0]])])
    assert list(rows) == ["0", "1.twice", "1.act", "1.memory", "1"]
    assert rows["1.twice"]["mean"] == pytest.approx(-2.0)
    assert rows["1.twice"]["std"] == pytest.approx(4.0)
    assert rows["1.twice"]["absmax"] == 6.0
    assert rows["1.act"]["zero_share"] == 0.5
    assert rows["1.act"]["nonfinite"] == 0
    assert "grad_std" not in rows["0"]


def test_non_finite_activations_are_counted():
    rows = collected(nn.Sequential(nn.Linear(2, 2)), [torch.tensor([[math.nan, 1.0]])])
    assert rows["0"]["nonfinite"] == 2
    assert math.isnan(rows["0"]["absmax"])


def test_of_several_micro_batches_the_first_counts():
    model = nn.Sequential(nn.Linear(1, 1))
    rows = collected(model, [torch.tensor([[0.0]]), torch.tensor([[1e6]])])
    assert rows["0"]["absmax"] == pytest.approx(abs(model[0].bias.item()))


def test_the_gradients_spread_is_taken_without_the_loss_scale():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    value = torch.tensor([[1.0, 2.0], [0.5, 3.0]])
    plain = collected(model, [value], gradients=True)
    scaled = collected(model, [value], gradients=True, scale=1024.0, factor=1024.0)
    assert plain["0"]["grad_std"] == pytest.approx(model[1].weight.sum(0).std(correction=0).item())
    assert scaled["0"]["grad_std"] == pytest.approx(plain["0"]["grad_std"])
    assert plain["1"]["grad_std"] == 0.0  # the derivative of a sum is 1 everywhere


def test_no_hook_stays_behind():
    model = Block()
    hooks = ActivationHooks(model)
    hooks.arm(gradients=True)
    assert hooks.armed
    hooks.collect(1.0)
    assert not hooks.armed
    assert not any(module._forward_hooks for module in model.modules())


def test_modules_that_do_not_run_or_give_no_floats_are_left_out():
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)
            self.pick = nn.Identity()

        def forward(self, x):
            self.pick(torch.tensor([1]))
            return self.used(x)

    assert list(collected(Sometimes(), [torch.ones(1, 1)])) == ["used"]
