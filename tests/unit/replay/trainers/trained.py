"""Tiny trainings under real trainers, recorded and ready to be bisected.

Each ``make_*`` is what a user's script would have: it takes nothing and builds what trains.
``SETTINGS`` says how, for all of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

SAMPLES = 32


def setting(name: str, default: Any) -> Any:
    """A number that a test has set for the script, as ``FORENSICS_TEST_NAME``."""
    return type(default)(os.environ.get(f"FORENSICS_TEST_{name}", default))


def home() -> Path:
    """Where the test's files lie."""
    return Path(setting("HOME", ""))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and their sums, drawn from the seed ``DATA``; the ``ZERO`` one is all zeros."""
    drawn = torch.Generator().manual_seed(setting("DATA", 0))
    inputs = torch.randn(SAMPLES, 8, generator=drawn)
    targets = inputs.sum(1, keepdim=True)
    if (zero := setting("ZERO", -1)) >= 0:
        inputs[zero] = 0.0
    return inputs, targets


class Net(nn.Module):
    """Returns its loss; the logarithm of a silent sample's energy is -Inf."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.drop = nn.Dropout(setting("DROPOUT", 0.1))

    def forward(self, inputs: Any = None, targets: Any = None) -> dict[str, torch.Tensor]:
        energy = inputs.square().mean(1, keepdim=True)
        if setting("ROUNDS", 0):  # half a bit of bf16 is gone, of fp32 it is many bits
            energy = (self.first(1.001 * inputs) - self.first(inputs)).abs().amin(1, keepdim=True)
        loudness = energy.log()
        out = self.last(self.drop(torch.relu(self.first(inputs)))) + loudness
        return {"loss": nn.functional.mse_loss(out, targets)}


class Samples(Dataset):  # type: ignore[type-arg]
    """As the Hugging Face Trainer wants them."""

    def __init__(self) -> None:
        self.inputs, self.targets = rows()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "targets": self.targets[index]}


def make_huggingface() -> Any:
    """A Hugging Face Trainer: 4 steps an epoch, each of 2 micro-batches of 4."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from forensics.record.trainers.huggingface import ForensicsCallback

    class Diary(TrainerCallback):  # type: ignore[misc]
        """Writes where the Trainer does, and tells elsewhere of what was saved and logged."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with (Path(args.output_dir) / "diary.txt").open("a") as file:
                file.write(f"{state.global_step}\n")

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with (home() / "told.txt").open("a") as file:
                file.write("saved\n")

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with (home() / "told.txt").open("a") as file:
                file.write(f"{state.log_history[-1]}\n")

    class Poison(TrainerCallback):  # type: ignore[misc]
        """One weight becomes NaN before the step ``POISON``."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == setting("POISON", -1):
                with torch.no_grad():
                    kwargs["model"].last.weight[0, 3] = torch.nan

    torch.manual_seed(0)
    return Trainer(
        Net(),
        TrainingArguments(
            str(home() / "out"),
            max_steps=12,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=setting("RATE", 0.01),
            max_grad_norm=0.5,
            save_steps=4,
            save_total_limit=4,
            logging_steps=1,
            use_cpu=True,
            bf16=bool(setting("BF16", 0)),
            report_to=[],
            label_names=["targets"],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Samples(),
        callbacks=[ForensicsCallback(home() / "run"), Poison(), Diary()],
    )


def make_lightning() -> Any:
    """Lightning's Trainer, module and loaders: 8 batches of 4 an epoch."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from forensics.record.trainers.lightning import ForensicsCallback

    class Diary(pl.Callback):  # type: ignore[misc, name-defined]
        """Writes where the Trainer does, saves by itself, and tells of a training that ended."""

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            for folder in (trainer.default_root_dir, trainer.log_dir):
                Path(folder).mkdir(exist_ok=True, parents=True)
                with (Path(folder) / "diary.txt").open("a") as file:
                    file.write(f"{trainer.global_step}\n")
            trainer.save_checkpoint(home() / "own.ckpt")

        def on_exception(self, trainer: Any, *_: Any) -> None:
            (home() / "ended.txt").write_text("ended")

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.net(*batch)["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.net(*batch)["loss"])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), 0.01)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 32)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.TensorDataset(*rows())
    saving = ModelCheckpoint(
        home() / "states", every_n_train_steps=setting("EVERY", 8), save_top_k=-1
    )
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=0.5,
        accumulate_grad_batches=setting("ACCUMULATION", 1),
        callbacks=[ForensicsCallback(home() / "run"), saving, Diary()],
        default_root_dir=home(),
        logger=CSVLogger(home() / "logs"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    shuffled = bool(setting("SHUFFLE", 0))
    loader = torch.utils.data.DataLoader(data, 4, shuffle=shuffled)
    return trainer, Module(), loader, torch.utils.data.DataLoader(data, 8)


def make_nothing() -> str:
    """What no contract knows."""
    return "trained"


def make_from_arguments() -> Any:
    """What reads a command line finds another program's."""
    raise SystemExit(2)


def make_pair() -> Any:
    """Lightning by hand: two optimizers, of which each freezes what the other one trains."""
    import lightning.pytorch as pl

    from forensics.record.trainers.lightning import ForensicsCallback

    class Pair(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.maker, self.critic = nn.Linear(4, 8), nn.Linear(8, 1)

        def training_step(self, batch: Any, index: int) -> None:
            loud = batch[0].square().mean(1, keepdim=True).log() + batch[0]
            for optimizer, real in zip(self.optimizers(), (None, loud), strict=True):
                self.toggle_optimizer(optimizer)
                seen = self.maker(torch.randn(4, 4)) if real is None else real
                self.manual_backward(nn.functional.softplus(self.critic(seen)).mean())
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> Any:
            return [torch.optim.AdamW(part.parameters()) for part in (self.maker, self.critic)]

    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[ForensicsCallback(home() / "run")],
        logger=False,
        default_root_dir=home(),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.TensorDataset(*rows())
    return trainer, Pair(), torch.utils.data.DataLoader(data, 4)
