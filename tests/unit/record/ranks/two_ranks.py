"""Two real ranks for tests: one interpreter that imports torch once and forks them.

    python -m tests.unit.record.ranks.two_ranks FOLDER

Each scenario is a function of this module; what it wants to be judged by, it writes to its folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, start_processes
from torch.nn.parallel import DistributedDataParallel

from forensics import Recorder
from forensics.record.ranks import MeasuringHook
from tests.unit.record.ranks import ranks_recipe

BAD = 6


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def data(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
    return inputs, inputs.sum(1, keepdim=True)


def train(
    run_dir: Path,
    ddp: DistributedDataParallel,
    *,
    steps: int = 10,
    first_step: int = 0,
    bad_rank: int = -1,
    die: Any = None,
    accumulation: int = 1,
    **options: Any,
) -> None:
    """A plain loop with three lines of recording."""
    rank = dist.get_rank()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with Recorder(
        run_dir, ddp, optimizer, max_norm=1.0, first_step=first_step, **options
    ) as recorder:
        for step in range(first_step, steps):
            optimizer.zero_grad()
            for part in range(accumulation):
                inputs, targets = data(step * accumulation + part, rank)
                if step == BAD and rank == bad_rank:
                    inputs[2, 3] = torch.nan
                if step == BAD and rank == 1 and die is not None:
                    die()
                last = part + 1 == accumulation
                ddp.require_backward_grad_sync = last
                loss = nn.functional.mse_loss(ddp(inputs), targets)
                (loss / accumulation).backward()
            recorder.gradients()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            recorder.end_step(loss)


def plain(folder: Path) -> None:
    """A NaN on rank 1; a continued run; hooks of the loop's own; accumulation; no recorder."""
    train(folder / "nan", DistributedDataParallel(model()), bad_rank=1, extras=("param_digest",))
    train(folder / "zero", DistributedDataParallel(model()), bad_rank=0)
    train(folder / "parts", DistributedDataParallel(model()), accumulation=3)
    train(folder / "again", DistributedDataParallel(model()), steps=8)
    dist.barrier()
    train(folder / "again", DistributedDataParallel(model()), first_step=5)
    own = DistributedDataParallel(model())
    own.register_comm_hook(None, allreduce_hook)
    train(folder / "own-hook", own)
    measured = DistributedDataParallel(model())
    measured.register_comm_hook(None, MeasuringHook(allreduce_hook))
    train(folder / "measured-hook", measured)
    if dist.get_rank() == 0:  # many loops make their recorder on rank 0 alone
        train(folder / "alone", DistributedDataParallel(model()))
    else:
        ddp = DistributedDataParallel(model())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        for step in range(10):
            optimizer.zero_grad()
            inputs, targets = data(step, 1)
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()


def killed(folder: Path) -> None:
    """Rank 1 is killed in its own part of a step."""
    train(
        folder / "killed",
        DistributedDataParallel(model()),
        die=lambda: os.kill(os.getpid(), signal.SIGKILL),
    )


def raised(folder: Path) -> None:
    """Rank 1 raises in its own part of a step."""

    def die() -> None:
        raise ValueError("no such shard")

    train(folder / "raised", DistributedDataParallel(model()), die=die)


def recorded(folder: Path) -> None:
    """The command line under a launcher's environment, and a resume of what it recorded."""
    from forensics.cli import main

    ports = iter(os.environ["FREE_PORTS"].split())

    def forensics(*words: str) -> int:
        os.environ["MASTER_PORT"] = next(ports)  # the store of the call before may linger
        return main(["record", *words])

    recipe = f"{ranks_recipe.__file__}:shares"
    common = ["--steps", "16", "--checkpoint-every", "5", "--device", "cpu"]
    codes = [
        forensics(recipe, "--out", str(folder / "whole"), *common),
        forensics(recipe, "--out", str(folder / "whole"), *common),
        forensics(recipe, "--out", str(folder / "fp16"), *common, "--precision", "fp16"),
        forensics(f"{ranks_recipe.__file__}:alike", "--out", str(folder / "alike"), *common),
    ]
    if os.environ["RANK"] == "0":
        (folder / "codes.json").write_text(json.dumps(codes))
        for path in (folder / "whole" / "checkpoints").glob("step-0000001[5-9]*"):
            path.unlink()
        (folder / "before.csv").write_bytes((folder / "whole" / "steps.csv").read_bytes())
    forensics(recipe, "--out", str(folder / "whole"), *common, "--resume")


SCENARIOS = {made.__name__: made for made in (plain, killed, raised, recorded)}


def run_rank(rank: int, scenario: str, folder: Path, ports: list[int]) -> None:
    """What each forked process does."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(ports[0]), "FREE_PORTS": " ".join(map(str, ports))}
    if scenario == "recorded":
        recorded(folder)
        return
    dist.init_process_group("gloo")
    SCENARIOS[scenario](folder)
    dist.destroy_process_group()


def free_ports(count: int = 5) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [int(found.getsockname()[1]) for found in sockets]


if __name__ == "__main__":
    for name in SCENARIOS:
        where = Path(sys.argv[1]) / name
        where.mkdir()
        with contextlib.suppress(ProcessExitedException, ProcessRaisedException):
            start_processes(run_rank, (name, where, free_ports()), nprocs=2, start_method="fork")
