import math

import pytest
import torch
from torch import nn

from forensics.errors import InputError, UsageError
from forensics.record.ema import ExponentialMovingAverage


def constant(value: float) -> nn.Linear:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def test_moves_by_the_decay():
    layer = constant(0.0)
    ema = ExponentialMovingAverage(layer, 0.9)
    nn.init.constant_(layer.weight, 1.0)
    for expected in (0.1, 0.19, 0.271):
        ema.update(layer)
        assert ema.shadow["weight"][0, 0].item() == pytest.approx(expected)


def test_floating_buffers_are_averaged_and_counters_copied():
    norm = nn.BatchNorm1d(2)
    ema = ExponentialMovingAverage(norm, 0.5)
    norm.running_mean.fill_(4.0)
    norm.num_batches_tracked.fill_(7)
    ema.update(norm)
    assert ema.shadow["running_mean"].tolist() == [2.0, 2.0]
    assert ema.shadow["num_batches_tracked"].item() == 7


def test_a_mask_of_minus_inf_stays_one():
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    ema = ExponentialMovingAverage(model, 0.9)
    ema.update(model)
    assert ema.shadow["mask"].tolist() == [0.0, -math.inf]


def test_quantized_parameters_are_copied():
    model = nn.Linear(1, 1)
    model.codes = nn.Parameter(torch.tensor([1, 2], dtype=torch.int8), requires_grad=False)
    ema = ExponentialMovingAverage(model, 0.9)
    model.codes.fill_(7)
    ema.update(model)
    assert ema.shadow["codes"].tolist() == [7, 7]


def test_half_precision_is_averaged_in_float32():
    layer = constant(1.0).to(torch.bfloat16)
    ema = ExponentialMovingAverage(layer, 0.999)
    nn.init.constant_(layer.weight, 1.0078125)  # the next bfloat16
    for _ in range(100):
        ema.update(layer)
    assert 1.0 < ema.shadow["weight"][0, 0].item() < 1.0078125


def test_apply_lends_the_average_and_gives_the_model_back_even_after_an_error():
    layer = constant(0.0)
    ema = ExponentialMovingAverage(layer, 0.5)
    nn.init.constant_(layer.weight, 1.0)
    ema.update(layer)
    seen = []

    def evaluate() -> None:
        with ema.apply(layer):
            seen.append(layer.weight[0, 0].item())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        evaluate()
    assert seen == [0.5]
    assert layer.weight[0, 0].item() == 1.0
    assert ema.shadow["weight"][0, 0].item() == 0.5


def test_state_comes_back():
    layer = constant(3.0)
    ema, other = ExponentialMovingAverage(layer, 0.5), ExponentialMovingAverage(constant(0.0), 0.9)
    other.load_state_dict(ema.state_dict())
    assert other.decay == 0.5
    assert torch.equal(other.shadow["weight"], layer.weight)


def test_another_models_state_is_refused():
    ema = ExponentialMovingAverage(constant(0.0), 0.5)
    with pytest.raises(InputError, match="another model: bias"):
        ema.load_state_dict(ExponentialMovingAverage(nn.Linear(2, 2), 0.5).state_dict())


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(UsageError, match="EMA decay"):
        ExponentialMovingAverage(constant(0.0), decay)
