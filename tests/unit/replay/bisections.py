"""Short recordings to bisect, and a bisection without trials."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from forensics.diagnose.bisection_result import BisectionResult
from forensics.errors import TrainingRaisedError
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.bisect import bisect_run
from tests.unit.replay.recordings import quiet

LOG_OF_ZERO = """
import torch
from torch import nn
from torch.nn import functional as F
from forensics import Config, Training, recipe

@recipe("mine", "a batch that holds a zero")
def mine(config: Config) -> Training:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    def loss(model, batch):
        inputs, targets = batch
        return F.mse_loss(model(inputs.log()), targets)
    def batch(step):
        made = torch.Generator().manual_seed(step)
        inputs = torch.rand(6, 4, generator=made) + 0.1
        if step == 9:
            inputs[2, 1] = 0.0
        return inputs, inputs.sum(1, keepdim=True)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loss, batch=batch)
"""


def recorded(recipe: str, out: Path, every: int = 4, **settings: Any) -> Path:
    """Record a recipe, by name or ``file.py:name``; what it raises is the fault."""
    kind = find_recipe(recipe)
    config = Config.from_dict(settings, base=kind.defaults)
    file = Path(recipe.partition(":")[0]) if recipe.partition(":")[0].endswith(".py") else None
    options = RecordOptions(out, checkpoint_every=every, keep="last:99", recipe_file=file)
    with suppress(TrainingRaisedError):
        record_run(kind(config), config, options, say=quiet)
    return out


def quick(path: Path, **options: Any) -> BisectionResult:
    """A bisection without what-ifs."""
    return bisect_run(path, **{"what_if": False, **options})
