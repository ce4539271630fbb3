import math

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forensics.errors import UsageError
from forensics.record.config import ScalerConfig
from forensics.record.loss_scale import (
    back_off,
    found_infs,
    grads_are_scaled,
    hold_floor,
    make_scaler,
    policy_of,
    scale_tensor,
)

CPU = torch.device("cpu")


def overflow(scaler: GradScaler, value: float = math.inf) -> None:
    """One real step of a GradScaler on a gradient of the given value."""
    w = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([w], lr=0.0)
    scaler.scale(w.sum()).backward()
    w.grad.fill_(value)
    scaler.step(optimizer)
    scaler.update()


def tracker(scaler: GradScaler) -> int:
    return scaler.state_dict()["_growth_tracker"]


def test_backing_off_is_what_a_real_overflow_does():
    real = make_scaler(ScalerConfig(init_scale=1024.0), CPU, enabled=True)
    ours = make_scaler(ScalerConfig(init_scale=1024.0), CPU, enabled=True)
    for scaler in (real, ours):
        scale_tensor(scaler, CPU)
        overflow(scaler, 1.0)
        overflow(scaler, 1.0)
    assert tracker(ours) == 2
    overflow(real)
    back_off(ours, 1024.0, 1.0)
    assert ours.state_dict() == real.state_dict()
    assert (ours.get_scale(), tracker(ours)) == (512.0, 0)


def test_backing_off_stops_at_the_floor():
    scaler = make_scaler(ScalerConfig(init_scale=3.0, floor=2.0), CPU, enabled=True)
    scale_tensor(scaler, CPU)
    back_off(scaler, 3.0, 2.0)
    assert scaler.get_scale() == 2.0


def test_an_update_below_the_floor_is_lifted_to_it():
    scaler = make_scaler(ScalerConfig(init_scale=1.0), CPU, enabled=True)
    overflow(scaler)
    assert scaler.get_scale() == 0.5
    hold_floor(scaler, 1.0, 1.0)
    assert scaler.get_scale() == 1.0
    hold_floor(scaler, 4.0, 1.0)
    assert scaler.get_scale() == 1.0


def test_a_disabled_scaler_is_left_alone():
    scaler = make_scaler(ScalerConfig(), CPU, enabled=False)
    back_off(scaler, 1.0, 1.0)
    hold_floor(scaler, 1.0, 1.0)
    assert scale_tensor(scaler, CPU).item() == 1.0
    assert found_infs(scaler, []) == []
    assert not grads_are_scaled(scaler, [])


def test_the_scale_tensor_is_made_before_the_first_loss():
    scaler = GradScaler("cpu", init_scale=256.0)
    with pytest.raises(AssertionError):
        scaler.update(1.0)
    assert scale_tensor(scaler, CPU).item() == 256.0
    scaler.update(1.0)
    assert scale_tensor(scaler, CPU).item() == 1.0


def test_found_inf_and_the_stage_are_seen_between_unscale_and_update():
    w = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([w], lr=0.0)
    scaler = GradScaler("cpu")
    scaler.scale(w.sum()).backward()
    assert grads_are_scaled(scaler, [optimizer])
    w.grad.fill_(math.nan)
    scaler.unscale_(optimizer)
    assert not grads_are_scaled(scaler, [optimizer])
    assert [float(t) for t in found_infs(scaler, [optimizer])] == [1.0]
    scaler.update()
    assert found_infs(scaler, [optimizer]) == []


def test_update_still_raises_where_nothing_was_unscaled():
    scaler = GradScaler("cpu")
    scale_tensor(scaler, CPU)
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update()


def test_grad_scaler_still_has_no_floor():
    # At 2^-128 its 1/scale is Inf, found_inf stays 0, and it writes NaN into the weights.
    w = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = GradScaler("cpu", init_scale=2.0**-128)
    scaler.scale((w * torch.tensor([0.0, 1.0])).sum()).backward()
    scaler.step(optimizer)
    assert not bool(w.isfinite().all())


def test_a_scale_below_its_floor_is_refused():
    with pytest.raises(UsageError, match="below its floor"):
        make_scaler(ScalerConfig(init_scale=0.5), CPU, enabled=True)
    assert make_scaler(ScalerConfig(init_scale=0.5, floor=0.0), CPU, enabled=True).is_enabled()


def test_the_policy_is_told():
    scaler = make_scaler(ScalerConfig(init_scale=8.0, growth_interval=7), CPU, enabled=True)
    policy = policy_of(scaler, 1.0)
    assert (policy.enabled, policy.init_scale, policy.growth_interval) == (True, 8.0, 7)
    assert policy.floor == 1.0
    assert not policy_of(GradScaler("cpu", enabled=False), 1.0).enabled
