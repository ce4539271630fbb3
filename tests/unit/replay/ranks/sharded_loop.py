"""A loop of one's own under ``fully_shard`` that trains the recipes of ``faulty_ranks``."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from forensics import Recorder
from forensics.record.recipe_lookup import find_recipe
from tests.unit.replay.ranks.faulty_ranks import CONFIG, STEPS


def record_sharded(run_dir: Path, recipe: str, *, guarded: bool) -> None:
    """What each rank does, in a process group of two.

    Args:
        run_dir: of the run.
        recipe: as ``--recipe`` takes it.
        guarded: a step whose norm is not finite is left out; else it is taken.
    """
    trained = find_recipe(recipe)(CONFIG)
    trained.rank, trained.world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    training = trained.build(CONFIG)
    model = training.model
    mesh = init_device_mesh("cpu", (trained.world_size,))
    fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    fully_shard(model, mesh=mesh)
    torch.manual_seed(trained.rank)  # dropout is each rank's own
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Recorder(run_dir, model, optimizer, max_norm=1.0, checkpoint_every=3) as recorder:
        for step in range(STEPS):
            optimizer.zero_grad()
            total = torch.zeros(())
            for batch in trained.batch(step):
                loss = training.loss(model, batch) / CONFIG.accumulation
                loss.backward()
                total += loss.detach()
            norm = recorder.gradients(total)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if norm < float("inf") or not guarded:
                optimizer.step()
            recorder.end_step()
