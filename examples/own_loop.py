"""A training loop of one's own, recorded: three lines of it are the recorder's (marked <--).

    python examples/own_loop.py runs/own-loop
    forensics report runs/own-loop
    forensics bisect runs/own-loop --recipe examples/own_loop.py:loudness

The second function is not needed for the record. It tells a bisection how the training is built, so
that it can be made again from a checkpoint. One of the recordings is silent: the logarithm of its
energy is -Inf.
"""

import sys

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from forensics import Recorder, Training, recipe

STEPS, SILENT = 60, 41


class Loudness(nn.Module):
    """How loud a sample is, in nepers, beside the sample itself."""

    def forward(self, samples):
        loudness = samples.square().mean(dim=1, keepdim=True).log()
        return torch.cat([samples, loudness], dim=1)


def batch(step):
    """16 samples of 8 features; any step's again, whenever it is asked for."""
    draw = torch.Generator().manual_seed(step)
    samples = torch.randn(16, 8, generator=draw)
    if step == SILENT:
        samples[5] = 0.0
    return samples, samples.sum(dim=1, keepdim=True)


def loss_of(model, batch):
    samples, targets = batch
    return nn.functional.mse_loss(model(samples), targets)


def build():
    model = nn.Sequential(Loudness(), nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    return model, optimizer, schedule


def train(folder):
    torch.manual_seed(0)
    model, optimizer, schedule = build()
    with Recorder(  # <-- 1
        folder,
        model,
        optimizer,
        schedulers=schedule,
        max_norm=1.0,
        checkpoint_every=20,
        resume=True,
    ) as recorder:
        for step in range(recorder.resume(), STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            recorder.gradients(loss)  # <-- 2
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            recorder.end_step()  # <-- 3


@recipe("loudness", "the same training, for a bisection to make again")
def loudness(config):
    model, optimizer, schedule = build()
    return Training(model, optimizer, loss_of, schedulers=schedule, batch=batch)


if __name__ == "__main__":
    train(sys.argv[1] if len(sys.argv) > 1 else "runs/own-loop")
