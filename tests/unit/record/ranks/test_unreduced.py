"""A rank's own gradients, read at the end of backward, just before DDP puts the reduced ones there.

One process, whose reduction is a hook of ours that makes every gradient 7.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from forensics.record.ranks import unreduced
from forensics.record.ranks.local_gradients import LocalGradients, MeasuringHook
from forensics.record.ranks.unreduced import UnreducedGradients, stay_own

REDUCED = 7.0


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Three layers; the first may lie in a reentrant checkpoint, and the last two change places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.inner = self.swapped = False

    def forward(self, inputs: Tensor) -> Any:
        if self.inner:
            begun = checkpoint(self.a, inputs.requires_grad_(), use_reentrant=True)
        else:
            begun = self.a(inputs)
        later = (self.c, self.b) if self.swapped else (self.b, self.c)
        for layer in later:
            begun = layer(torch.tanh(begun))
        return {"scores": [begun]}


def sevens(_, bucket):  # type: ignore[no-untyped-def]  # torch takes no annotation that is text
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(torch.full_like(bucket.buffer(), REDUCED))
    return done


def replica_of(model: nn.Module, **options: Any) -> DistributedDataParallel:
    replica = DistributedDataParallel(model, **options)
    replica.register_comm_hook(None, sevens)
    return replica


def loss_of(model: nn.Module, seed: int = 0) -> Tensor:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = model(inputs)["scores"][0].square().sum()
    return loss


def own_norm(model: nn.Module, *seeds: int) -> float:
    """Of the same model alone."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for seed in seeds:
        loss_of(alone, seed).backward()
    return math.hypot(*(p.grad.norm().item() for p in alone.parameters() if p.grad is not None))


def is_reduced(model: nn.Module) -> bool:
    return all(bool((p.grad == REDUCED).all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("inner", [False, True])
def test_they_are_this_ranks_own_in_every_pass(inner: bool) -> None:
    model = Net()
    model.inner = inner
    replica = replica_of(model)
    told: list[str] = []
    own = UnreducedGradients(replica)
    own.listen(lambda: told.append("reducing"), told.append)
    for step in range(4):
        model.swapped = step == 3 and not inner  # another gradient comes last
        model.zero_grad()
        expected = own_norm(model, step)
        loss_of(replica, step).backward()
        norms = own.take()
        assert norms is not None
        assert norms.total == pytest.approx(expected, rel=1e-6)
        assert (norms.nonfinite, norms.bad) == (0, ())
        assert is_reduced(model)
        assert told == ["reducing"] * (step + 1)
    assert own.take() is None


def test_one_hook_is_left_and_none_after_the_rest() -> None:
    model = Net()
    replica = replica_of(model)
    own = UnreducedGradients(replica)
    loss_of(replica).backward()
    held = [p for p in model.parameters() if p._post_accumulate_grad_hooks]
    assert held == [model.a.weight] or held == [model.a.bias]
    own.rest()
    own.take()
    loss_of(replica).backward()
    assert own.take() is None


def test_what_is_only_added_up_is_measured_with_the_pass_that_reduces_it() -> None:
    model = Net()
    replica = replica_of(model)
    own = UnreducedGradients(replica)
    for _ in range(2):
        model.zero_grad()
        with replica.no_sync():
            for seed in (1, 2):
                loss_of(replica, seed).backward()
        assert own.take() is None
        expected = own_norm(model, 1, 2, 3)
        loss_of(replica, 3).backward()
        norms = own.take()
        assert norms is not None
        assert norms.total == pytest.approx(expected, rel=1e-6)


def test_bad_ones_are_counted_nearest_the_loss_first_and_the_first_bad_pass_is_kept() -> None:
    model = Net()
    replica = replica_of(model)
    own = UnreducedGradients(replica)
    with torch.no_grad():
        model.b.bias[1] = math.nan
    loss_of(replica).backward()
    with torch.no_grad():
        model.b.bias[1] = 0.0
    loss_of(replica).backward()  # a second pass before the step is read
    norms = own.take()
    assert norms is not None
    assert math.isnan(norms.total)
    assert {id(p) for p in norms.bad[:2]} == {id(model.c.weight), id(model.c.bias)}
    assert {id(p) for p in norms.bad} == {id(p) for p in model.parameters()}
    assert norms.nonfinite == sum(p.numel() for p in model.parameters())
    loss_of(replica).backward()
    again = own.take()
    assert again is not None
    assert math.isfinite(again.total)


def test_a_norm_that_overflows_is_the_true_one() -> None:
    model = nn.Linear(4, 1, bias=False)
    replica = replica_of(model)
    own = UnreducedGradients(replica)
    replica(torch.full((1, 4), 1e20)).sum().backward()
    norms = own.take()
    assert norms is not None
    assert norms.total == pytest.approx(2e20, rel=1e-6)
    assert norms.nonfinite == 0


def test_frozen_parameters_are_not_waited_for() -> None:
    model = Net()
    model.a.weight.requires_grad_(False)
    replica = replica_of(model)
    own = UnreducedGradients(replica)
    expected = own_norm(model, 0)
    loss_of(replica).backward()
    norms = own.take()
    assert norms is not None
    assert norms.total == pytest.approx(expected, rel=1e-6)


def test_an_error_of_ours_ends_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    replica = replica_of(model)
    own, said = UnreducedGradients(replica), list[str]()
    own.listen(lambda: None, said.append)

    def broken(_: Any) -> Any:
        raise ValueError("no such norm")

    monkeypatch.setattr(unreduced, "l2_norms", broken)
    loss_of(replica).backward()
    assert is_reduced(model)
    assert said == ["local gradient norms: ValueError while they were measured"]


def test_a_model_that_is_watched_can_be_copied_and_saved() -> None:
    model = Net()
    UnreducedGradients(replica_of(model))
    copied = copy.deepcopy(model)
    loss_of(copied).backward()
    torch.save(model, io.BytesIO())


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({}, True),
        ({"bucket_cap_mb": 1}, True),
        ({"gradient_as_bucket_view": True}, False),
        ({"find_unused_parameters": True}, False),
        ({"static_graph": True}, False),
    ],
)
def test_where_they_do_not_stay_own_or_may_not_come(options: dict[str, Any], stays: bool) -> None:
    replica = DistributedDataParallel(Net(), **options)
    assert stay_own(replica) is stays


def test_sparse_ones_and_hooks_of_the_loop_are_left_to_hooks() -> None:
    assert not stay_own(DistributedDataParallel(Sparse()))
    assert not stay_own(replica_of(Net()))


@pytest.mark.parametrize(
    ("options", "hooks"), [({}, []), ({"gradient_as_bucket_view": True}, [MeasuringHook])]
)
def test_a_recorded_replica_reduces_as_without_where_it_can(
    options: dict[str, Any], hooks: list[type]
) -> None:
    model = Net()
    replica = DistributedDataParallel(model, **options)
    said: list[str] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = LocalGradients(replica, names, lambda: None, said.append)
    for step in range(2):
        model.zero_grad()
        expected = own_norm(model, step)
        loss_of(replica, step).backward()
        cells = own.take(2.0)
        assert cells["grad_l2_local"] == pytest.approx(expected / 2, rel=1e-6)
        assert (cells["grad_local_nonfinite"], cells["first_nonfinite"]) == (0, None)
    with torch.no_grad():
        model.c.bias[0] = math.inf
    loss_of(replica).backward()
    assert own.take(1.0, ["c.bias", "c.weight"])["first_nonfinite"] == "c.bias"
    assert [type(hook) for hook, _ in replica._comm_hooks] == hooks
    assert said == []
