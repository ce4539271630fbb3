"""What is read off the buffer of FSDP's reduce-scatter, without any process group."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    _get_gradient_divide_factors,
)

from forensics.record.ranks.fsdp_gradients import FsdpGradients, _divided_by

RANKS = 2


class Grouped:
    """Two parameters of a module, padded and cut in chunks as FSDP does it."""

    def __init__(self) -> None:
        self.shapes = {"weight": (3, 2), "bias": (3,)}
        self.parameters = {n: nn.Parameter(torch.zeros(2, *s[1:])) for n, s in self.shapes.items()}
        self.group = SimpleNamespace(
            mesh_info=SimpleNamespace(shard_mesh_size=RANKS, mesh=torch.zeros(RANKS)),
            gradient_divide_factor=None,
            fsdp_params=[
                SimpleNamespace(sharded_param=p, padded_sharded_param_size=p.shape)
                for p in self.parameters.values()
            ],
        )
        self.group.mesh_info.mesh = SimpleNamespace(size=lambda: RANKS)
        self.said: list[str] = []
        names = {id(p): f"fc.{n}" for n, p in self.parameters.items()}
        self.own = FsdpGradients(nn.Linear(1, 1), names, lambda begins: None, self.said.append)

    def scatter(self, **gradients: torch.Tensor) -> None:
        """Whole gradients on their way to the reduce-scatter."""
        buffer = torch.full((RANKS, 2 * 2 + 2), 7.0)
        given = [gradients[name] for name in self.shapes]
        torch._chunk_cat(given, dim=0, num_chunks=RANKS, out=buffer)
        self.own.saw(self.group, buffer.flatten())


@pytest.fixture
def grouped() -> Grouped:
    return Grouped()


def test_the_norm_is_of_the_whole_gradients_and_not_of_the_padding(grouped: Grouped) -> None:
    weight, bias = torch.arange(6.0).view(3, 2), torch.tensor([1.0, -2.0, 3.0])
    grouped.scatter(weight=weight, bias=bias)
    cells = grouped.own.take(2.0)
    expected = math.hypot(weight.norm().item(), bias.norm().item()) / 2.0
    assert cells["grad_l2_local"] == pytest.approx(expected, rel=1e-6)
    assert cells["grad_local_nonfinite"] == 0
    assert cells["first_nonfinite"] is None
    assert grouped.own.take(1.0) == {}


def test_the_bad_parameter_nearest_the_loss_is_named(grouped: Grouped) -> None:
    weight, bias = torch.zeros(3, 2), torch.zeros(3)
    weight[2, 1] = math.nan
    grouped.scatter(weight=weight, bias=bias)
    assert grouped.own.take(1.0)["first_nonfinite"] == "fc.weight"
    bias[0] = math.inf
    grouped.scatter(weight=weight, bias=bias)
    cells = grouped.own.take(1.0)
    assert (cells["first_nonfinite"], cells["grad_local_nonfinite"]) == ("fc.bias", 2)


def test_a_bad_micro_batch_is_not_forgotten(grouped: Grouped) -> None:
    bad = torch.zeros(3)
    bad[1] = math.nan
    grouped.scatter(weight=torch.ones(3, 2), bias=bad)
    grouped.scatter(weight=torch.ones(3, 2), bias=torch.ones(3))
    cells = grouped.own.take(1.0)
    assert math.isnan(cells["grad_l2_local"])
    assert (cells["first_nonfinite"], cells["grad_local_nonfinite"]) == ("fc.bias", 1)
    grouped.scatter(weight=torch.ones(3, 2), bias=torch.ones(3))
    assert grouped.own.take(1.0)["grad_l2_local"] == pytest.approx(3.0)


def test_without_its_layout_only_the_totals_are_told(grouped: Grouped) -> None:
    grouped.own.saw(
        SimpleNamespace(mesh_info=grouped.group.mesh_info), torch.tensor([3.0, math.inf])
    )
    cells = grouped.own.take(1.0)
    assert (cells["grad_local_nonfinite"], cells["first_nonfinite"]) == (1, None)
    assert grouped.said == []


def test_an_error_of_ours_ends_no_training(grouped: Grouped) -> None:
    grouped.own.saw(None, torch.ones(2, dtype=torch.float64))
    assert len(grouped.said) == 1
    assert grouped.own.take(1.0) == {}


def test_another_torch_costs_own_gradients_and_nothing_else() -> None:
    """As if ``fully_shard`` kept its collectives elsewhere."""

    class FSDPModule(nn.Linear):
        pass

    said: list[str] = []
    model = FSDPModule(2, 1)
    own = FsdpGradients(model, {}, lambda begins: None, said.append)
    assert model(torch.ones(1, 2)).shape == (1, 1)
    assert model(torch.ones(1, 2)).shape == (1, 1)
    assert [clause.partition(":")[0] for clause in said] == ["local gradient norms"]
    assert own.take(1.0) == {}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 16, 24, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_torch_divides_by_as_much_before(ranks: int, dtype: torch.dtype) -> None:
    group: Any = SimpleNamespace(size=lambda: ranks)
    before, *_ = _get_gradient_divide_factors(group, None, dtype, "cpu")
    mesh = SimpleNamespace(mesh=SimpleNamespace(size=lambda: ranks))
    ours = _divided_by(SimpleNamespace(mesh_info=mesh, gradient_divide_factor=None), dtype)
    assert ours == (before or 1.0)
