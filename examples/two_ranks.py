"""A loop on two ranks that is recorded: the three lines are marked.

    torchrun --standalone --nproc-per-node 2 examples/two_ranks.py runs/two-ranks

One target of rank 1 is NaN at step 30. The reduction carries it into the gradients of both ranks.
"""

import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from forensics import Recorder, load_run  # 1

out = sys.argv[1] if len(sys.argv) > 1 else "runs/two-ranks"
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with Recorder(out, model, optimizer, max_norm=10.0) as recorder:
    for step in range(40):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        y = x.sum(1, keepdim=True)
        if step == 30 and rank == 1:
            y[5] = float("nan")
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if recorder.gradients(loss) < float("inf"):  # 2: the reduced norm, alike on all ranks
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        recorder.end_step()  # 3

if rank == 0:
    print(load_run(out).diagnose().verdict.summary)
dist.destroy_process_group()
