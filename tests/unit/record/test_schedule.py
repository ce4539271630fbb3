import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forensics.record.config import OptimizerConfig, ScheduleConfig
from forensics.record.optimizers import build_optimizer
from forensics.record.schedule import build_scheduler, lr_factor

COSINE = ScheduleConfig("cosine", warmup_steps=10, min_lr_ratio=0.1)


def test_the_warm_up_rises_to_the_full_rate_and_never_is_0():
    factors = [lr_factor(step, COSINE, 100) for step in range(11)]
    assert factors[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert factors[10] == 1.0


def test_the_cosine_ends_at_its_least_and_stays_there():
    assert lr_factor(99, COSINE, 100) == pytest.approx(0.1)
    assert lr_factor(500, COSINE, 100) == pytest.approx(0.1)
    middle = 10 + (99 - 10) / 2
    assert lr_factor(int(middle), COSINE, 100) == pytest.approx(0.55, abs=0.01)


@given(st.integers(0, 300), st.integers(0, 200), st.integers(1, 250), st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_the_factor_stays_between_its_least_and_1(step, warmup, total, least):
    schedule = ScheduleConfig("cosine", warmup_steps=warmup, min_lr_ratio=least)
    factor = lr_factor(step, schedule, total)
    assert 0 < factor <= 1 or (factor == least == 0)
    if step >= warmup:
        assert factor >= least - 1e-12
        assert lr_factor(step + 1, schedule, total) <= factor


def test_the_scheduler_sets_the_rate_of_every_step():
    model = nn.Linear(2, 1)
    optimizer = build_optimizer(model.parameters(), OptimizerConfig("sgd", lr=2.0))
    scheduler = build_scheduler(optimizer, COSINE, 100)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([2.0 * lr_factor(step, COSINE, 100) for step in range(12)])


def test_a_rate_that_never_changes_needs_no_scheduler():
    optimizer = build_optimizer(nn.Linear(2, 1).parameters(), OptimizerConfig())
    assert build_scheduler(optimizer, ScheduleConfig(), 100) is None
    assert build_scheduler(optimizer, ScheduleConfig(warmup_steps=5), 100) is not None


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("flavour", ["foreach", "fused", "single"])
def test_every_optimizer_in_every_flavour_takes_the_same_step(name, flavour):
    config = OptimizerConfig(name, lr=0.1, weight_decay=0.01, momentum=0.9, eps=1e-6)
    stepped = {}
    for chosen in (flavour, "single"):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = build_optimizer(model.parameters(), replace(config, flavour=chosen))
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(5, 4)).square().mean().backward()
            optimizer.step()
        group = optimizer.param_groups[0]
        assert group["lr"] == 0.1
        assert group["weight_decay"] == 0.01
        assert bool(group["fused"]) == (chosen == "fused")
        assert bool(group["foreach"]) == (chosen == "foreach")
        stepped[chosen] = [p.detach().clone() for p in model.parameters()]
    for one, other in zip(stepped[flavour], stepped["single"], strict=True):
        torch.testing.assert_close(one, other)


def test_a_schedulers_state_loads_safely(tmp_path):
    optimizer = build_optimizer(nn.Linear(2, 1).parameters(), OptimizerConfig())
    scheduler = build_scheduler(optimizer, COSINE, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        scheduler.step()
        torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other = build_scheduler(optimizer, COSINE, 100)
    other.load_state_dict(state)
    assert other.last_epoch == 1
