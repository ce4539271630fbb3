"""What recording costs two ranks that train under DistributedDataParallel.

    OMP_NUM_THREADS=1 python benchmarks/ranks_overhead.py [--max-norm 1]

Two models that are alike train in turns of some steps, one under a recorder on every rank. Both
clip; the recorded loop clips by the norm that ``gradients()`` returns. The ratio is of processor
time, the median over the turns, so that other work on the machine does not count.

Their gradients soon are below 1, so that the clip has nothing to do, as in most steps of a sound
training. With ``--max-norm 1e-9`` every step is clipped, and all gradients are measured after it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from forensics import Recorder

STEPS = 10
"""Steps of a turn."""
MODELS = {"1M": (256, 16), "10M": (1024, 9)}
"""Width and depth of a multilayer perceptron."""


class Loop:
    """One training, with or without a recorder."""

    def __init__(
        self, width: int, depth: int, batch: int, max_norm: float, recorded: Path | None
    ) -> None:
        torch.manual_seed(0)
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.inputs, self.max_norm = torch.randn(batch, width), max_norm
        self.recorder = (
            Recorder(recorded, self.model, self.optimizer, max_norm=max_norm)
            if recorded is not None
            else None
        )

    def step(self) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad()
        loss = (self.model(self.inputs) - self.inputs).square().mean()
        loss.backward()
        if self.recorder is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
            self.optimizer.step()
            loss.item()
            return
        norm = torch.tensor(self.recorder.gradients(loss))
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.max_norm, norm)
        self.optimizer.step()
        self.recorder.end_step()


def run(rank: int, folder: str, port: int, turns: int, max_norm: float) -> None:
    """What each rank does; rank 0 prints."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name, (width, depth) in MODELS.items():
        loops = [Loop(width, depth, 256, max_norm, at) for at in (None, Path(folder) / name)]
        ratios = [ratio(loops) for _ in range(turns + 1)][1:]  # the first warms up
        for loop in loops:
            with contextlib.suppress(AttributeError):
                loop.recorder.close()  # type: ignore[union-attr]
        if rank == 0:
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{name}: {statistics.median(ratios):.3f} of the same without ({spread})")
    dist.destroy_process_group()


def ratio(loops: list[Loop]) -> float:
    """Processor time of a turn of the recorded loop over that of the plain one."""
    spent = []
    for loop in loops:
        dist.barrier()
        began = time.process_time()
        for _ in range(STEPS):
            loop.step()
        spent.append(time.process_time() - began)
    return spent[1] / spent[0]


def main() -> None:
    """Start both ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--port", type=int, default=29533)
    parser.add_argument("--max-norm", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = folder, options.port, options.turns, options.max_norm
        start_processes(run, told, nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
