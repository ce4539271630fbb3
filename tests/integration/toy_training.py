"""A small training with everything that a resume could lose, recorded by a process of its own.

``python toy_training.py OUT '{"option": value}'``; see ``main``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from forensics.errors import ForensicsError
from forensics.record.config import Config, ScalerConfig
from forensics.record.recipe import Batch, Recipe, Training, recipe
from forensics.record.reference_loop import RecordOptions, record_run

CONFIG = Config(
    steps=30,
    seed=3,
    device="cpu",
    precision="fp16",
    max_norm=0.5,
    accumulation=2,
    ema_decay=0.9,
    scaler=ScalerConfig(init_scale=2.0**20, growth_interval=8),
)
BAD_STEP = 16
"""Its loss is NaN: a skip before backward, after a checkpoint."""

EXTRAS = ("param_l2", "update_l2", "ema_l2_distance", "param_digest")


@recipe("toy", "dropout, batch norm, accumulation, EMA, a cosine schedule and a calibrating scaler")
class Toy(Recipe):
    def build(self, config: Config) -> Training:
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return Training(
            model,
            [optimizer],
            lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]) * batch[2],
            schedulers=[CosineAnnealingLR(optimizer, config.steps)],
        )

    def batch(self, step: int) -> list[Batch]:
        random = torch.Generator().manual_seed(1000 * self.config.seed + step)
        last = step == self.config.steps - 1
        return [
            (
                torch.randn(8, 8, generator=random),
                torch.randint(0, 3, (8,), generator=random),
                torch.tensor(float("nan") if step == BAD_STEP else 1.0),
            )
            for _ in range(1 if last else self.config.accumulation)
        ]


def main(out: str, **told: Any) -> int:
    """Record into ``out``.

    Args:
        out: the run directory.
        told: fields of ``RecordOptions``; and ``kill_after`` (a step: kill -9 then),
            ``interrupt_after`` (a step: Ctrl-C then), ``file_limit`` (bytes a file may grow to).
    """
    kill, interrupt = told.pop("kill_after", None), told.pop("interrupt_after", None)
    if limit := told.pop("file_limit", None):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def on_step(done: int, steps: int) -> None:
        if done - 1 == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if done - 1 == interrupt:
            # A shell that started the tests in the background has Ctrl-C ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)

    torch.set_num_threads(1)  # another count computes other bits
    told["extras"] = tuple(told.get("extras", ()))
    options = RecordOptions(Path(out), **told)
    try:
        record_run(Toy(), CONFIG, options, on_step=on_step)
    except ForensicsError as error:
        print(error.line())
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], **json.loads(sys.argv[2])))
