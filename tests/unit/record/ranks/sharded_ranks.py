"""Real ranks with sharded models, for tests: one interpreter imports torch and forks them.

    python -m tests.unit.record.ranks.sharded_ranks FOLDER

Two ranks run all that ends well one after the other, four what needs a mesh of two dimensions; two
more pairs lose a rank. What is to be judged they write to the folder.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # what follows is imported once, before the fork
import torch.distributed.checkpoint.state_dict_saver
from torch import distributed as dist
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from forensics import Recorder
from forensics.record.ranks import agreement, sharded_checkpoints, sharded_norms

SECONDS = 300
BAD, STEPS = 4, 7
SILENT_S = 10.0
"""Seconds that a stopped rank is waited for; on a busy machine the ranks of a pair lie apart."""


# -- models -------------------------------------------------------------------------------------


class Block(nn.Module):
    """What tensor and sequence parallelism split: a norm, up, down, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 12)
        self.down, self.head = nn.Linear(12, 8), nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """A small network."""
        hidden = self.down(torch.tanh(self.up(self.norm(inputs))))
        return self.head(hidden)  # type: ignore[no-any-return]


def plain_model(seed: int = 0) -> nn.Module:
    """Five rows over two ranks are uneven, and the last layer's one row leaves a rank without."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 1)
    )


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """The first layer by itself, the others together."""
    fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    fully_shard(model, mesh=mesh)
    return model


def data(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's samples."""
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
    return inputs, inputs.sum(1, keepdim=True)


# -- a loop -------------------------------------------------------------------------------------


def total_norm(model: nn.Module) -> float:
    """What torch makes of the gradients."""
    found = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    return float(found.full_tensor() if isinstance(found, DTensor) else found)


def train(
    run_dir: Path,
    model: nn.Module,
    *,
    steps: int = STEPS,
    before: Callable[[int, torch.Tensor], None] = lambda step, targets: None,
    scaler: Any = None,
    spoil: Callable[[int], None] = lambda step: None,
    batch_of: int | None = None,
    **options: Any,
) -> list[tuple[float, float]]:
    """A plain loop with three lines of recording; returns its norms beside torch's own."""
    rank, norms = dist.get_rank(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    torch.manual_seed(100 + rank)
    with Recorder(
        run_dir, model, optimizer, max_norm=0.5, schedulers=schedule, scaler=scaler, **options
    ) as recorder:
        for step in range(recorder.resume(), steps):
            optimizer.zero_grad()
            inputs, targets = data(step, rank if batch_of is None else batch_of)
            before(step, targets)
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss if scaler is None else scaler.scale(loss)).backward()
            spoil(step)
            if scaler is not None:
                scaler.unscale_(optimizer)
            norm = recorder.gradients(loss)
            norms.append((norm, total_norm(model)))
            if scaler is not None:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            elif norm < float("inf"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            schedule.step()
            recorder.end_step()
    return norms


def bad_target(step: int, targets: torch.Tensor) -> None:
    """One target of rank 1 is NaN."""
    if step == BAD and dist.get_rank() == 1:
        targets[2] = torch.nan


# -- what ends well -------------------------------------------------------------------------------


def two(folder: Path) -> dict[str, Any]:
    """Two ranks, one scenario after the other."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
    found: dict[str, Any] = {}
    saving: dict[str, Any] = {"checkpoint_every": 3, "keep": "last:2"}
    found["whole"] = train(folder / "whole", sharded(plain_model(), mesh), **saving)
    train(folder / "parts", sharded(plain_model(), mesh), steps=4, **saving)
    if dist.get_rank() == 0:  # as if killed right after step 3 was saved
        for path in (folder / "parts" / "checkpoints").glob("step-00000004*"):
            path.rename(folder / path.name)
    dist.barrier()
    train(folder / "parts", sharded(plain_model(9), mesh), resume=True, **saving)
    extras = ("param_l2", "update_l2", "param_digest")
    model = sharded(plain_model(), mesh)
    found["nan"] = train(folder / "nan", model, before=bad_target, extras=extras, snapshot_every=2)
    found["scaled"] = train(
        folder / "scaled", sharded(plain_model(), mesh), scaler=torch.amp.GradScaler("cpu")
    )
    found["lacking"] = lacking_gradient(folder / "lacking", mesh)
    found["overflow"] = overflow(mesh)
    poisoned(folder / "poisoned", mesh, saving)
    found["tensor"] = tensor_parallel(folder / "tensor", mesh, None)
    model = sharded(plain_model(), mesh)
    options = {"snapshot_every": 2, "extras": ("param_l2",), "checkpoint_every": 2}
    found["others"] = train(  # as many a script has it: rank 0 alone is asked for more
        folder / "others", model, steps=3, **({} if dist.get_rank() else options)
    )
    for orig in (True, False):
        name = f"first-{orig}"
        found[name] = first_fsdp(folder / name, mesh, "FULL_SHARD", orig=orig)
    found["failing"] = failing(folder / "failing", mesh)
    found["alone"] = on_rank_zero_alone(folder / "alone", mesh)
    return found


def lacking_gradient(run_dir: Path, mesh: Any) -> list[tuple[float, float]]:
    """A gradient is gone on rank 1 at step 2: the sum over the ranks still ends, and is alike."""
    model = sharded(plain_model(), mesh)

    def spoil(step: int) -> None:
        if step == 2 and dist.get_rank() == 1:
            model[0].weight.grad = None  # type: ignore[index]

    norms = []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Recorder(run_dir, model, optimizer, snapshot_every=1) as recorder:
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = data(step, dist.get_rank())
            nn.functional.mse_loss(model(inputs), targets).backward()
            spoil(step)
            norms.append((recorder.gradients(), 0.0))
            optimizer.step()
            recorder.end_step()
    return norms


def failing(run_dir: Path, mesh: Any) -> list[tuple[float, float]]:
    """Measuring fails on rank 1 alone: before the sum over the ranks, for it, and after it."""
    model = sharded(plain_model(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    norms = []

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    with Recorder(run_dir, model, optimizer, snapshot_every=0) as recorder:
        places: list[Any] = [None, (recorder, "_follow"), (sharded_norms, "l2_norms")]
        places += [(recorder, "_complete"), None]
        for step, place in enumerate(places):
            optimizer.zero_grad()
            inputs, targets = data(step, dist.get_rank())
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            spoilt = mock.patch.object(*place, fail) if place and dist.get_rank() else nullcontext()
            with spoilt:
                norm = recorder.gradients(loss)
            norms.append((norm, total_norm(model)))
            optimizer.step()
            recorder.end_step()
    return norms


def overflow(mesh: Any) -> list[Any]:
    """Elements of 1e30: finite, and their norm is not, in the gradients' own precision."""
    from forensics.record.ranks.sharded_norms import ShardedNorms

    model = sharded(plain_model(), mesh)
    named = list(model.named_parameters())
    for _, parameter in named:
        parameter.grad = torch.full_like(parameter, 1e30)
    norms = ShardedNorms(named, lambda: None)(named, [torch.tensor(float(dist.get_rank()))])
    elements = sum(parameter.numel() for _, parameter in named)
    return [norms.overflowed, dict(norms.nonfinite), norms.total / 1e30, elements, norms.alongside]


def poisoned(run_dir: Path, mesh: Any, saving: dict[str, Any]) -> None:
    """A weight that only rank 1 holds is NaN before the state of step 6 is saved."""
    model = sharded(plain_model(), mesh)

    def spoil(step: int) -> None:
        if step == 5 and dist.get_rank() == 1:
            model[0].weight.to_local().data[0, 0] = torch.nan  # type: ignore[index]

    train(run_dir, model, spoil=spoil, **saving)


def tensor_parallel(run_dir: Path, mesh: Any, outer: Any) -> list[tuple[float, float, float]]:
    """Tensor and sequence parallelism, beside the same model in one process."""
    torch.manual_seed(0)
    alone = Block()
    torch.manual_seed(0)
    model = Block()
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    if outer is not None:
        fully_shard(model, mesh=outer)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, alone)]
    norms = []
    options = {"extras": ("param_l2", "update_l2"), "checkpoint_every": 2, "snapshot_every": 2}
    with Recorder(run_dir, model, optimizers[0], max_norm=0.5, **options) as recorder:  # type: ignore[arg-type]
        for step in range(5):
            inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
            targets = inputs[:, :2]
            mine = inputs.chunk(2)[mesh.get_local_rank()]
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(mine), targets)
            loss.backward()
            nn.functional.mse_loss(alone(inputs), targets).backward()
            norms.append((recorder.gradients(loss), total_norm(model), total_norm(alone)))
            for part, optimizer in zip((model, alone), optimizers, strict=True):
                nn.utils.clip_grad_norm_(part.parameters(), 0.5)
                optimizer.step()
            recorder.end_step()
    return norms


def first_fsdp(run_dir: Path, mesh: Any, strategy: str, *, orig: bool) -> list[Any]:
    """FullyShardedDataParallel: our norms beside FSDP's own and those of one process."""
    torch.manual_seed(0)
    alone = Block()
    spread = {"device_mesh": mesh, "device_id": torch.device("cpu"), "use_orig_params": orig}
    model = FullyShardedDataParallel(
        copy.deepcopy(alone),
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        **spread,  # type: ignore[arg-type]
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (model, alone)]
    norms = []
    options = {"extras": ("param_l2", "update_l2"), "checkpoint_every": 2, "snapshot_every": 1}
    with Recorder(run_dir, model, optimizers[0], max_norm=0.1, **options) as recorder:  # type: ignore[arg-type]
        for step in range(4):
            inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
            targets = inputs[:, :2].clone()
            if step == 3:
                targets[-1] = torch.nan  # the last rank's
            size = dist.get_world_size()
            mine, aims = (t.chunk(size)[dist.get_rank()] for t in (inputs, targets))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(mine), aims)
            loss.backward()
            nn.functional.mse_loss(alone(inputs), targets).backward()
            norm, of_one = recorder.gradients(loss), total_norm(alone)
            norms.append((norm, model.clip_grad_norm_(0.1).item(), of_one))
            nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            for optimizer in optimizers if norm < float("inf") else ():
                optimizer.step()
            recorder.end_step()
    return norms


def mixed_meshes(run_dir: Path, mesh: Any) -> list[float]:
    """Layers that tensor parallelism splits beside others, which its ranks hold alike."""
    torch.manual_seed(0)
    alone = Block()
    torch.manual_seed(0)
    model = Block()
    parallelize_module(model, mesh["inner"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["outer"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    mine = inputs.chunk(2)[mesh["outer"].get_local_rank()]
    nn.functional.mse_loss(alone(inputs), inputs[:, :2]).backward()
    with Recorder(run_dir, model, optimizer, extras=("param_l2",)) as recorder:
        nn.functional.mse_loss(model(mine), mine[:, :2]).backward()
        norm = recorder.gradients()
        recorder.end_step()  # without a step: the weights are as they were
    weights = torch.stack([p.norm() for p in alone.parameters()]).norm()
    return [norm, total_norm(alone), weights.item()]


def on_rank_zero_alone(run_dir: Path, mesh: Any) -> list[float]:
    """Rank 1 makes no recorder: rank 0 must not wait for it for ever."""
    agreement.PATIENCE_S = 1.0
    model = sharded(plain_model(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    recorder = None
    if dist.get_rank() == 0:
        recorder = Recorder(run_dir, model, optimizer, checkpoint_every=2, snapshot_every=1)
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        inputs, targets = data(step, dist.get_rank())
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        norms.append(recorder.gradients(loss) if recorder else 0.0)
        optimizer.step()
        if recorder:
            recorder.end_step()
    if recorder:
        recorder.close()
    return norms


def four(folder: Path) -> dict[str, Any]:
    """Replicas of shards, and tensor parallelism within them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    found: dict[str, Any] = {}
    model = sharded(plain_model(), mesh)
    options: dict[str, Any] = {"extras": ("param_l2",), "checkpoint_every": 3, "snapshot_every": 2}
    found["hybrid"] = train(folder / "hybrid", model, before=bad_target, **options)
    found["both"] = tensor_parallel(folder / "both", mesh["inner"], mesh["outer"])
    found["first"] = first_fsdp(folder / "first", mesh, "HYBRID_SHARD", orig=True)
    found["mixed"] = mixed_meshes(folder / "mixed", mesh)
    return found


# -- what loses a rank ----------------------------------------------------------------------------


def killed(folder: Path) -> None:
    """Rank 1 is killed while the state of step 4 is being written."""
    writing = sharded_checkpoints.ShardedCheckpoints._written
    saves = iter(range(100))

    def slowly(self: Any, given: Any, folder: Path) -> Any:
        future = writing(self, given, folder)
        if next(saves) == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return future

    sharded_checkpoints.ShardedCheckpoints._written = slowly  # type: ignore[method-assign]
    mesh = init_device_mesh("cpu", (2,))
    train(folder / "killed", sharded(plain_model(), mesh), checkpoint_every=2, keep="last:1")


def hung(folder: Path) -> None:
    """Rank 1 stops in its own part of a step; the other waits until its group has had enough."""

    def stop(step: int, targets: torch.Tensor) -> None:
        if step == BAD and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    train(folder / "hung", sharded(plain_model(), init_device_mesh("cpu", (2,))), before=stop)


# -- processes ------------------------------------------------------------------------------------


def run_rank(rank: int, size: int, scenario: str, folder: Path) -> None:
    """What each forked process does."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    patience = SILENT_S if scenario == "hung" else 120.0
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=patience),
    )
    found = SCENARIOS[scenario][1](folder)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


SCENARIOS: dict[str, tuple[int, Callable[[Path], Any]]] = {
    "two": (2, two),
    "four": (4, four),
    "killed": (2, killed),
    "hung": (2, hung),
}


@contextmanager
def forked(scenario: str, folder: Path) -> Iterator[list[Any]]:
    """The processes of one scenario; none of them outlives the context."""
    folder.mkdir()
    size = SCENARIOS[scenario][0]
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=run_rank, args=(rank, size, scenario, folder))
        for rank in range(size)
    ]
    try:
        for process in ranks:
            process.start()
        yield ranks
    finally:
        for process in ranks:
            process.kill()  # a stopped one, too
            process.join()


def wait_for(ranks: Iterable[Any], seconds: float) -> None:
    """Until they have ended, or so long."""
    until = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.1, until - time.monotonic()))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    with forked("hung", root / "hung") as waiting:  # it waits while the others work
        for name in ("two", "four", "killed"):
            with forked(name, root / name) as processes:
                wait_for(processes, SECONDS / 4)
        wait_for(waiting[:1], SECONDS / 4)  # the stopped one does not end by itself
