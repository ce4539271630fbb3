"""A sharded loop on two ranks that is recorded: the three lines are marked.

    torchrun --standalone --nproc-per-node 2 examples/fsdp.py runs/fsdp

Each rank holds half of every parameter. One target of rank 1 is NaN at step 30: the gradients that
are scattered carry it to both ranks. Start the script again, and it goes on from its newest state.
"""

import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from forensics import Recorder, load_run  # 1

out = sys.argv[1] if len(sys.argv) > 1 else "runs/fsdp"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with Recorder(out, model, optimizer, max_norm=10.0, checkpoint_every=10, resume=True) as recorder:
    for step in range(recorder.resume(), 40):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        y = x.sum(1, keepdim=True)
        if step == 30 and rank == 1:
            y[5] = float("nan")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if recorder.gradients(loss) < float("inf"):  # 2: of the whole model, alike on all ranks
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        recorder.end_step()  # 3

if rank == 0:
    print(load_run(out).diagnose().verdict.summary)
dist.destroy_process_group()
