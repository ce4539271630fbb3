"""A loop under Accelerate that is recorded: the three lines are marked.

    python examples/accelerate_loop.py runs/accelerate

The gradients of one batch are a thousand times what they should be: a label lost its unit.
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

from forensics import load_run
from forensics.record.trainers.accelerate import AcceleratedRecorder  # 1

out = sys.argv[1] if len(sys.argv) > 1 else "runs/accelerate"
torch.manual_seed(0)
inputs = torch.randn(1600, 8)
targets = inputs.sum(1, keepdim=True) + 0.1 * torch.randn(1600, 1)
targets[1204:1208] *= 1000
data = torch.utils.data.TensorDataset(inputs, targets)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with AcceleratedRecorder(out, accelerator, model, optimizer, max_norm=10.0) as recorder:  # 2
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
        recorder.end_step()  # 3

print(load_run(out).diagnose().verdict.summary)
