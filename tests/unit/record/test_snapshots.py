import math

import pytest
import torch
from torch import nn

from forensics.record.clipping import grad_norms
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.parameters import tracked_parameters
from forensics.record.snapshots import SnapshotTaker


def layer(values: list[float], grads: list[float] | None = None) -> nn.Linear:
    made = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([values]))
    if grads is not None:
        made.weight.grad = torch.tensor([grads])
    return made


def taker(model, optimizer, ema=None) -> SnapshotTaker:
    return SnapshotTaker(model, tracked_parameters(model, [optimizer]), [optimizer], ema)


def take(model, optimizer, ema=None, **kwargs):
    norms = grad_norms(tracked_parameters(model, [optimizer]))
    return taker(model, optimizer, ema).take(7, norms, **kwargs)


def test_parameters_tell_gradient_and_value():
    model = layer([3.0, 4.0], [-6.0, 8.0])
    snapshot = take(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert snapshot.step == 7
    names, stats = snapshot.kinds["param"]
    assert names == ["weight"]
    assert stats == {
        "value_l2": [5.0],
        "value_nonfinite": [0],
        "grad_l2": [10.0],
        "grad_absmax": [8.0],
        "grad_nonfinite": [0],
        "v_ratio": [None],
    }


def test_bad_elements_are_counted_and_an_overflowing_norm_is_not_bad():
    model = layer([1e25, 1e25], [math.nan, math.inf])
    _, stats = take(model, torch.optim.SGD(model.parameters(), lr=0.1)).kinds["param"]
    assert stats["grad_nonfinite"] == [2]
    assert math.isnan(stats["grad_l2"][0])
    assert stats["value_nonfinite"] == [0]
    assert stats["value_l2"] == [pytest.approx(math.sqrt(2) * 1e25, rel=1e-6)]


def test_without_backward_there_are_values_only():
    model = layer([3.0, 4.0])
    snapshot = taker(model, torch.optim.SGD(model.parameters(), lr=0.1)).take(0, None)
    assert snapshot.kinds["param"][1] == {"value_l2": [5.0], "value_nonfinite": [0]}


def test_frozen_parameters_have_values_and_no_gradient():
    model = nn.Sequential(layer([1.0], [2.0]), layer([3.0]))
    model[1].weight.requires_grad_(False)
    names, stats = take(model, torch.optim.SGD(model[0].parameters(), lr=0.1)).kinds["param"]
    assert names == ["0.weight", "1.weight"]
    assert stats["grad_l2"] == [2.0, None]
    assert stats["grad_nonfinite"] == [0, None]
    assert stats["value_l2"] == [1.0, 3.0]


def test_quantized_parameters_are_left_out_and_eight_bit_ones_measured():
    model = layer([3.0], [1.0])
    model.codes = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
    model.eight = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False)
    names, stats = take(model, torch.optim.SGD([model.weight], lr=0.1)).kinds["param"]
    assert dict(zip(names, stats["value_l2"], strict=True)) == {"weight": 3.0, "eight": 2.0}


def test_buffers_averages_and_moments_are_kinds_of_their_own():
    model = nn.Sequential(layer([1.0, 1.0]), nn.BatchNorm1d(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ema = ExponentialMovingAverage(model, 0.9)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    model[1].running_mean.fill_(math.nan)
    optimizer.state[model[0].weight]["exp_avg"].fill_(math.inf)
    kinds = take(model, optimizer, ema).kinds
    names, stats = kinds["buffer"]
    assert names == ["1.running_mean", "1.running_var"]
    assert stats["value_nonfinite"] == [1, 0]
    names, stats = kinds["optimizer"]
    assert names[:2] == ["0.weight.exp_avg", "0.weight.exp_avg_sq"]
    assert not any(name.endswith(".step") for name in names)
    assert stats["value_nonfinite"][0] == 2
    names, stats = kinds["ema"]
    assert names[0] == "0.weight"
    assert stats["value_l2"][0] == pytest.approx(math.sqrt(2))


class TestAdamsRatio:
    def steady(self, steps: int) -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = layer([1.0, 1.0], [0.5, -2.0])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        for _ in range(steps):
            optimizer.step()
        return model, optimizer

    @pytest.mark.parametrize("steps", [1, 5])
    def test_is_one_while_gradients_keep_their_size(self, steps):
        model, optimizer = self.steady(steps)
        assert take(model, optimizer).kinds["param"][1]["v_ratio"] == [pytest.approx(1.0, rel=1e-4)]

    def test_jumps_where_the_second_moment_lags_behind(self):
        model, optimizer = self.steady(50)
        model.weight.grad.mul_(100.0)
        (ratio,) = take(model, optimizer).kinds["param"][1]["v_ratio"]
        # 50 steps of g² and one of 10,000 g², as Adam (0.999) will average them.
        mean = (0.999 * (1 - 0.999**50) + 0.001 * 1e4) / (1 - 0.999**51)
        assert ratio == pytest.approx(math.sqrt(1e4 / mean), rel=1e-3)

    def test_is_not_taken_of_gradients_that_are_still_scaled(self):
        model, optimizer = self.steady(2)
        assert take(model, optimizer, scaled=True).kinds["param"][1]["v_ratio"] == [None]

    def test_is_not_taken_without_a_second_moment(self):
        model = layer([1.0], [1.0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.step()
        assert take(model, optimizer).kinds["param"][1]["v_ratio"] == [None]


def test_updates_are_added_by_name():
    model = layer([3.0], [1.0])
    snapshot = take(model, torch.optim.SGD(model.parameters(), lr=0.1))
    snapshot.add_updates({"weight": 0.25})
    assert snapshot.kinds["param"][1]["update_l2"] == [0.25]
