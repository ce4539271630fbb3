"""Short recordings to replay, and sessions on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.session import Session, open_session
from forensics.runlog.run import load_run

USER_FILE = """
import torch
from torch import nn
from torch.nn import functional as F
from forensics import Config, Training, recipe

@recipe("mine", "dropout, accumulation, EMA")
def mine(config: Config) -> Training:
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1))
    def loss(model, batch):
        inputs, targets = batch
        return F.mse_loss(model(inputs), targets)
    def batch(step):
        made = torch.Generator().manual_seed(step)
        inputs = torch.randn(6, 4, generator=made)
        pair = (inputs, inputs.sum(1, keepdim=True))
        return [pair, tuple(t[:3] for t in pair)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return Training(model, optimizer, loss, schedulers=scheduler, batch=batch)
"""


def quiet(line: str) -> None:
    """Nobody listens."""


def record(recipe: str, out: Path, **settings: Any) -> Path:
    """A short recording of a registered recipe, with a checkpoint every four steps."""
    kind = find_recipe(recipe)
    config = replace(kind.defaults, **{"steps": 12, **settings})
    options = RecordOptions(out=out, checkpoint_every=4, keep="last:9")
    record_run(kind(config), config, options, say=quiet)
    return out


def open_run(path: Path, **options: Any) -> Session:
    """A session on a run directory."""
    return open_session(load_run(path), say=quiet, **options)
