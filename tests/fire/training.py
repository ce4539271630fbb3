"""A training with everything a kill could lose, and the children of the fork server that run it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from forensics.errors import ForensicsError
from forensics.record import checkpoints, reference_loop
from forensics.record.config import Config, ScalerConfig
from forensics.record.recipe import Batch, Recipe, Training, recipe
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.runlog import snapshot_writer
from forensics.runlog.activations import ActivationWriter
from forensics.runlog.params import ParamWriter

STEPS = 160
BAD_STEPS = (41, 42, 97)
"""Their loss is NaN: skipped before backward, and snapshotted."""
GROUP = 5
"""Snapshots a part, so that the run compacts often."""
EXTRAS = ("param_l2", "param_digest")
CONFIG = Config(
    steps=STEPS,
    seed=5,
    device="cpu",
    precision="fp16",
    max_norm=0.5,
    accumulation=2,
    ema_decay=0.9,
    scaler=ScalerConfig(init_scale=2.0**18, growth_interval=16),
)
OPTIONS: dict[str, Any] = {
    "checkpoint_every": 4,
    "keep": "last:3,every:40",
    "snapshot_every": 2,
    "activations": True,
    "extras": EXTRAS,
}


@recipe("under-fire", "dropout, batch norm, accumulation, EMA, a schedule and a scaler")
class UnderFire(Recipe):
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
        factor = float("nan") if step in BAD_STEPS else 1.0
        return [
            (
                torch.randn(8, 8, generator=random),
                torch.randint(0, 3, (8,), generator=random),
                torch.tensor(factor),
            )
            for _ in range(self.config.accumulation)
        ]


def record(out: str, told: dict[str, Any] | None = None, marks: str = "") -> int:
    """Record into ``out``: a function of a child process.

    Args:
        out: the run directory.
        told: fields of ``RecordOptions`` beside ``OPTIONS``; ``steps``: another number of them.
        marks: a pipe that gets a line for what happens: ``open`` the recorder is, ``step N`` is
            done, a ``checkpoint`` begins, a part is about to ``compact``, what will be done again
            is about to be moved (``supersede``), and it is ``over``.

    Returns:
        The exit code that ``forensics record`` would have.
    """
    given = {**OPTIONS, **(told or {})}
    config = Config.from_dict({"steps": given.pop("steps", STEPS)}, base=CONFIG, where="test")
    torch.set_num_threads(1)
    mark = _marking(marks)
    try:
        with _small_parts():
            record_run(
                UnderFire(config),
                config,
                RecordOptions(Path(out), **given),
                on_step=lambda done, steps: mark(f"step {done - 1}"),
                say=lambda line: print(line, flush=True),
            )
    except ForensicsError as error:
        print(error.line(), file=sys.stderr)
        return int(error.exit_code)
    finally:
        mark("over")
    return 0


@contextlib.contextmanager
def _small_parts() -> Iterator[None]:
    """Snapshot parts of GROUP; a test that records in its own process is left as it was."""
    with contextlib.ExitStack() as stack:
        for writer in (ParamWriter, ActivationWriter):
            stack.enter_context(mock.patch.object(writer.__init__, "__defaults__", (GROUP,)))
        yield


def _marking(marks: str) -> Callable[[str], None]:
    """What writes a mark; it is called by what happens inside the recorder, too."""
    if not marks:
        return lambda text: None
    pipe = os.open(marks, os.O_WRONLY)

    def mark(text: str) -> None:
        os.write(pipe, f"{text}\n".encode())

    for owner, name, text in (
        (checkpoints.CheckpointStore, "save", "checkpoint"),
        (snapshot_writer, "write_parquet", "compact"),
        (reference_loop, "supersede", "supersede"),
        (reference_loop, "Recorder", "open"),
    ):
        _before(owner, name, text, mark)
    return mark


def _before(owner: Any, name: str, text: str, mark: Callable[[str], None]) -> None:
    real = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        mark(text)
        return real(*args, **kwargs)

    setattr(owner, name, marked)
