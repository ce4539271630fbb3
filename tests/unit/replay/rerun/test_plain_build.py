"""What a recipe may build where several ranks are replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from forensics.errors import NotReplayableError
from forensics.replay.rerun.plain_build import check_plain, plain_build


class Spread(nn.Parameter):
    """A parameter that says of itself that it is spread over ranks."""

    device_mesh: Any = None


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: DistributedDataParallel(nn.Linear(2, 2)), "DistributedDataParallel"),
        (lambda: DeviceMesh("cpu", [0]), "DeviceMesh"),
        (lambda: init_device_mesh("cpu", (1,)), "DeviceMesh"),
        (lambda: dist.init_process_group("gloo"), "init_process_group"),
    ],
)
def test_what_would_talk_to_other_ranks_is_refused_by_name(build: Any, named: str) -> None:
    before = DistributedDataParallel.__init__, DeviceMesh.__init__, dist.init_process_group
    with pytest.raises(NotReplayableError, match=f"is built with {named}"), plain_build(2):
        build()
    after = DistributedDataParallel.__init__, DeviceMesh.__init__, dist.init_process_group
    assert after == before


def test_a_plain_model_is_built_and_one_rank_builds_what_it_likes() -> None:
    with plain_build(2):
        nn.Linear(2, 2)
    with plain_build(1), pytest.raises(ValueError, match="process group"):  # torch's own word
        DistributedDataParallel(nn.Linear(2, 2))


def test_a_model_that_is_sharded_already_is_refused() -> None:
    model = nn.Linear(2, 2)
    check_plain(model)
    model.weight = Spread(torch.ones(2, 2))
    with pytest.raises(NotReplayableError, match="has sharded parameters"):
        check_plain(model)
