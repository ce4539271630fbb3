"""What measures a rank's own gradients under DistributedDataParallel, without other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from forensics.record.ranks.local_gradients import MOST_PASSES, LocalGradients, MeasuringHook

NAN = float("nan")


@dataclass
class Bucket:
    """One of several buckets of a backward pass."""

    values: Sequence[float]
    place: int = 0
    last: bool = True
    damaged: bool = False

    def index(self) -> int:
        return self.place

    def is_last(self) -> bool:
        return self.last

    def buffer(self) -> Tensor:
        return torch.tensor(self.values)

    def gradients(self) -> list[Tensor]:
        if self.damaged:
            raise ValueError("no such view")
        return [self.buffer()]

    def parameters(self) -> list[Tensor]:
        return [torch.zeros(len(self.values))]


@pytest.fixture
def heard() -> list[Any]:
    return []


@pytest.fixture
def hook(heard: list[Any]) -> MeasuringHook:
    made = MeasuringHook(lambda state, bucket: heard.append(bucket))
    made.listen(lambda: heard.append("reducing"), heard.append)
    return made


def test_a_pass_is_all_its_buckets(hook: MeasuringHook, heard: list[Any]) -> None:
    first, second = Bucket([3.0], 0, last=False), Bucket([4.0], 1)
    hook(None, first)
    hook(None, second)
    found = hook.take()
    assert found is not None
    assert (found.total, found.nonfinite) == (pytest.approx(5.0), 0)
    assert heard == [first, "reducing", second]
    assert hook.take() is None


def test_of_several_passes_the_first_bad_one_counts(hook: MeasuringHook) -> None:
    """Its NaN is in the gradients of every rank when the next one begins."""
    for values in ([1.0, 1.0], [NAN, 1.0], [NAN, NAN]):
        hook(None, Bucket(values))
    found = hook.take()
    assert found is not None
    assert found.nonfinite == 1
    for values in ([1.0], [2.0]):
        hook(None, Bucket(values))
    sound = hook.take()
    assert sound is not None
    assert sound.total == 2.0


def test_passes_that_nobody_asks_for_fill_no_memory(hook: MeasuringHook) -> None:
    for _ in range(3 * MOST_PASSES):
        hook(None, Bucket([1.0]))
    hook(None, Bucket([7.0]))
    assert len(hook._passes) <= MOST_PASSES + 1
    found = hook.take()
    assert found is not None
    assert found.total == 7.0


def test_what_fails_in_a_measurement_is_said_and_ends_no_backward(
    hook: MeasuringHook, heard: list[Any]
) -> None:
    damaged = Bucket([1.0], damaged=True)
    hook(None, damaged)
    assert heard == [
        "local gradient norms: ValueError while they were measured",
        "reducing",
        damaged,
    ]


def test_at_rest_it_only_hands_on(hook: MeasuringHook, heard: list[Any]) -> None:
    hook.rest()
    bucket = Bucket([NAN])
    hook(None, bucket)
    assert heard == [bucket]
    assert hook.take() is None


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def measured(replicas: nn.Module, scale: float, *, runs_before: bool) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in replicas.named_parameters()}
    inputs, said = torch.full((1, 2), scale), []
    if runs_before:
        with torch.no_grad():
            for replica in replicas.children():
                replica(inputs)
    own = LocalGradients(replicas, names, lambda: None, said.append)
    for replica in replicas.children():
        replica(inputs).sum().backward()
    assert said == []
    cells = own.take(1.0, ["1.module.weight"])
    own.close()
    return cells


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("runs_before", [False, True])
def test_several_replicas_are_measured_as_one(runs_before: bool) -> None:
    """Each weight has a gradient of (3, 3)."""
    parts = [DistributedDataParallel(nn.Linear(2, 1, bias=False)) for _ in range(2)]
    replicas = nn.ModuleList(parts)
    cells = measured(replicas, 3.0, runs_before=runs_before)
    assert cells == {
        "grad_l2_local": pytest.approx(6.0),
        "grad_local_nonfinite": 0,
        "first_nonfinite": None,
    }


@pytest.mark.usefixtures("alone")
def test_the_first_bad_parameter_is_the_one_that_arrives_first() -> None:
    replicas = nn.ModuleList(
        [DistributedDataParallel(nn.Linear(2, 1, bias=False)) for _ in range(2)]
    )
    cells = measured(replicas, NAN, runs_before=False)
    assert (cells["grad_local_nonfinite"], cells["first_nonfinite"]) == (4, "1.module.weight")
