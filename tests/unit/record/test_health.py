import json
import math

import torch
from torch import nn

from forensics.record.ema import ExponentialMovingAverage
from forensics.record.health import HealthScan
from forensics.runlog.json_fields import plain_json


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))


def training():
    model = Masked()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    ema = ExponentialMovingAverage(model, 0.9)
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict()],
        "ema": ema.state_dict(),
        "schedulers": [{"best": math.inf, "mode_worse": math.inf, "last_epoch": 3}],
        "scaler": {"scale": 65536.0},
        "extra": {"queue": {"values": torch.zeros(3)}},
        "alarm": {"loss": math.nan},  # no part of the training
    }
    return HealthScan(model, [optimizer]), state


def bad(scan: HealthScan, state) -> dict[str, tuple[str, int, int]]:
    return {found.name: (found.kind, found.nan, found.inf) for found in scan.scan(state)[0]}


def test_what_is_infinite_by_nature_is_healthy():
    scan, state = training()
    assert bad(scan, state) == {}


def test_bad_values_are_named_by_kind_and_parameter():
    scan, state = training()
    state["model"]["layer.weight"][0, 0] = math.nan
    state["model"]["layer.weight"][0, 1] = math.inf
    state["optimizers"][0]["state"][1]["exp_avg_sq"][0] = math.inf
    state["ema"]["shadow"]["layer.bias"][1] = math.nan
    state["optimizers"][0]["param_groups"][0]["lr"] = math.inf
    state["scaler"]["scale"] = math.inf
    found, _ = scan.scan(state)
    told = {b.name: (b.kind, b.parameter, b.nan, b.inf, b.numel) for b in found}
    assert told == {
        "model.layer.weight": ("param", "layer.weight", 1, 1, 4),
        "optimizers.0.state.1.exp_avg_sq": ("optimizer", "layer.bias", 0, 1, 2),
        "ema.shadow.layer.bias": ("ema", "layer.bias", 1, 0, 2),
        "optimizers.0.param_groups.0.lr": ("lr", "", 0, 1, 1),
        "scaler.scale": ("scaler", "", 0, 1, 1),
    }


def test_an_inf_is_bad_where_an_earlier_state_was_finite():
    scan, state = training()
    state["model"]["norm.running_var"][0] = math.inf
    assert bad(scan, state) == {}  # never seen finite: perhaps it is meant
    scan, state = training()
    scan.scan(state)
    state["model"]["norm.running_var"][0] = math.inf
    state["extra"]["queue"]["values"][1] = -math.inf
    assert bad(scan, state) == {
        "model.norm.running_var": ("buffer", 0, 1),
        "extra.queue.values": ("other", 0, 1),
    }


def test_a_nan_is_bad_anywhere():
    scan, state = training()
    state["model"]["mask"][0] = math.nan
    state["schedulers"][0]["best"] = math.nan
    assert bad(scan, state) == {
        "model.mask": ("buffer", 1, 1),
        "schedulers.0.best": ("other", 1, 0),
    }


def test_extremes_are_finite_and_fit_into_json():
    scan, state = training()
    state["model"]["layer.weight"][0, 0] = math.nan
    state["model"]["layer.bias"][0] = -1e30
    _, extremes = scan.scan(state)
    assert extremes["param"]["name"] == "model.layer.bias"
    assert 0.9e30 < extremes["param"]["absmax"] < 1.1e30
    json.dumps(plain_json(extremes), allow_nan=False)
