"""Two real ranks under each trainer: one interpreter that imports the trainers once and forks them.

python -m tests.unit.record.trainers.two_trainer_ranks FOLDER
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.unit.record.ranks.two_ranks import data, free_ports, model

STEPS, ACCUMULATION, BAD = 10, 2, 7


def rank() -> int:
    return int(os.environ["RANK"])


def spoilt(inputs: torch.Tensor, step: int) -> torch.Tensor:
    """Rank 1 has a NaN in its share of one step."""
    return inputs * torch.nan if rank() == 1 and step == BAD else inputs


# -- Accelerate -----------------------------------------------------------------------------------


def with_accelerate(run_dir: Path, *, hook: bool = False, sharded: bool = False) -> None:
    """A loop that accumulates and clips; with a hook of its own, the recorder is rank 0's alone."""
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    from forensics.record.trainers.accelerate import AcceleratedRecorder

    own = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    handlers = [own] if hook else []
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATION, kwargs_handlers=handlers
    )
    net = model()
    if sharded:  # what Accelerate itself shards on GPUs alone
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        optimizer = accelerator.prepare(torch.optim.SGD(net.parameters(), 0.05))
    else:
        net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.05))
    with torch.no_grad():  # a model that has run holds other parameters, and takes hooks only now
        net(data(0, rank())[0])
    recorder = None
    if rank() == 0 or not hook:
        recorder = AcceleratedRecorder(run_dir, accelerator, net, optimizer, max_norm=1.0)
    for part in range(STEPS * ACCUMULATION):
        inputs, targets = data(part, rank())
        with accelerator.accumulate(net):
            seen = spoilt(inputs, part // ACCUMULATION)
            accelerator.backward(nn.functional.mse_loss(net(seen), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
    if recorder is not None:
        recorder.close()
    accelerator.free_memory()


# -- Hugging Face ---------------------------------------------------------------------------------


def with_huggingface(folder: Path) -> None:
    """A Trainer that saves and stops, and one that goes on."""
    from transformers import Trainer, TrainingArguments

    from forensics.record.trainers.huggingface import ForensicsCallback
    from tests.unit.record.trainers.test_huggingface import Net, Rows

    class Spoilt(Net):
        forwards = 0

        def forward(self, inputs: Any = None, targets: Any = None) -> dict[str, torch.Tensor]:
            step, self.forwards = self.forwards // ACCUMULATION, self.forwards + 1
            return super().forward(spoilt(inputs, step + first), targets)

    for first, last in ((0, 6), (6, STEPS)):  # midway in the second epoch
        arguments = TrainingArguments(
            str(folder / "out"),
            max_steps=last,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=ACCUMULATION,
            max_grad_norm=0.5,
            lr_scheduler_type="constant",
            save_steps=6,
            use_cpu=True,
            report_to=[],
            label_names=["targets"],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        callback = ForensicsCallback(folder / "huggingface")
        trainer = Trainer(Spoilt(), arguments, train_dataset=Rows(), callbacks=[callback])
        trainer.train(resume_from_checkpoint=first > 0)


# -- Lightning ------------------------------------------------------------------------------------


def with_lightning(run_dir: Path | None, home: Path, strategy: Any, *, alone: bool = False) -> None:
    """A Trainer, by default with its callback on every rank; it may choose the folder itself."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
    from torch.distributed.fsdp import fully_shard

    from forensics.record.trainers.lightning import ForensicsCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = model()

        def configure_model(self) -> None:
            if not isinstance(strategy, str):
                fully_shard(self.body, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, targets = batch
            seen = spoilt(inputs, index // ACCUMULATION)
            return nn.functional.mse_loss(self.body(seen), targets)

        def validation_step(self, batch: Any, index: int) -> None:
            loss = nn.functional.mse_loss(self.body(batch[0]), batch[1])
            self.log("val_loss", loss, sync_dist=True)  # once before the training begins, too

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.05)

    batches = [data(part, rank()) for part in range(STEPS * ACCUMULATION)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    callbacks: list[Any] = [ModelCheckpoint(home / "states", every_n_train_steps=4, save_top_k=-1)]
    if rank() == 0 or not alone:
        callbacks.append(ForensicsCallback(run_dir))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        accumulate_grad_batches=ACCUMULATION,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        default_root_dir=home,
        use_distributed_sampler=False,  # each rank's batches are its own
        logger=run_dir is None and CSVLogger(home),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader, loader)


def with_fabric(run_dir: Path) -> None:
    """A loop of one's own under Fabric."""
    import lightning

    from forensics import Recorder

    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    net = model()
    wrapped, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.05))
    with Recorder(run_dir, wrapped, optimizer, max_norm=1.0) as recorder:
        for step in range(STEPS):
            inputs, targets = data(step, rank())
            loss = nn.functional.mse_loss(wrapped(spoilt(inputs, step)), targets)
            fabric.backward(loss)
            recorder.gradients(loss)
            fabric.clip_gradients(wrapped, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
            recorder.end_step()


def run_rank(rank: int, folder: Path, port: int) -> None:
    """What each forked process does."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "here"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with_accelerate(folder / "accelerate")
    with_accelerate(folder / "own-hook", hook=True)
    with_accelerate(folder / "accelerate-sharded", sharded=True)
    with_huggingface(folder)
    with_fabric(folder / "fabric")
    with_lightning(folder / "lightning", folder / "ddp", "ddp")
    with_lightning(None, folder / "alone", "ddp", alone=True)
    by_two = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    with_lightning(None, folder / "lightning-sharded", by_two)


if __name__ == "__main__":
    import accelerate  # noqa: F401 - once, before the ranks are forked
    import transformers.trainer  # noqa: F401
    from torch.multiprocessing import start_processes

    start_processes(run_rank, (Path(sys.argv[1]), free_ports(1)[0]), nprocs=2, start_method="fork")
