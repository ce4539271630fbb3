"""From a recipe and a config to a training on its device, with the scaler and EMA it asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forensics.errors import ForensicsError, TrainingRaisedError
from forensics.record.config import Config
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.loss_scale import make_scaler
from forensics.record.precision import Precision
from forensics.record.provenance import describe_run
from forensics.record.recipe import Batch, Recipe, Training
from forensics.record.rng import seed_everything, seeds_of
from forensics.record.unread_settings import WatchedSettings, complaint
from forensics.runlog.manifest import Manifest


def assemble(
    recipe: Recipe,
    config: Config,
    precision: Precision,
    device: torch.device,
    say: Callable[[str], None] | None = None,
    *,
    watched: WatchedSettings | None = None,
) -> Training:
    """Seed every generator and build the training, its model on ``device``.

    Where the recipe has no scaler or EMA of its own, the ones that the config asks for are put
    in; the scaler is a disabled one where the precision needs none. ``say`` is told of settings
    that were changed and that the recipe does not read. ``watched`` is the config as it notes
    what ``build`` reads, for a caller that asks for more than that.

    Raises:
        TrainingRaisedError: the recipe raised.
    """
    seed_everything(config.seed)
    watched = watched or WatchedSettings(config)
    recipe.config = watched.config
    try:
        training = recipe.build(watched.config)
        training.model.to(device)
    except ForensicsError:
        raise
    except (Exception, SystemExit) as error:
        raise TrainingRaisedError(told(error), where=f"building {recipe.name}") from error
    finally:
        recipe.config = config
    unread = watched.unread(recipe.defaults)
    if unread and say is not None:
        say(complaint(recipe.name, unread))
    if training.scaler is None:
        training.scaler = make_scaler(config.scaler, device, enabled=precision.uses_scaler)
    if training.ema is None and config.ema_decay is not None:
        training.ema = ExponentialMovingAverage(training.model, config.ema_decay)
    return training


def describe_recording(
    recipe: Recipe,
    config: Config,
    training: Training,
    precision: Precision,
    recipe_file: Path | None = None,
) -> Manifest:
    """Everything that ``run.json`` says of a recording before its first step."""
    kind = type(recipe)
    schedule: dict[str, Any] = {
        "name": config.schedule.name,
        "warmup_steps": config.schedule.warmup_steps,
        "min_lr_ratio": config.schedule.min_lr_ratio,
        "total_steps": config.steps,
    }
    entry = {
        "name": recipe.name,
        "entry_point": f"{kind.__module__}:{kind.__qualname__}",
        "file": str(recipe_file.resolve()) if recipe_file else "",
        "file_sha256": _sha256(recipe_file) if recipe_file else "",
        "config": config.to_dict(),
    }
    found = describe_run(
        training.model,
        training.optimizers,
        scaler=training.scaler,
        precision=None if _chooses_precision(recipe, training, precision) else precision,
        max_norm=config.max_norm,
        scale_floor=config.scaler.floor if recipe.step is None else 0.0,
        code=recipe_file,
    )
    return replace(
        found,
        recipe=entry,
        seeds=seeds_of(config.seed) | {"data": config.seed},
        accumulation=config.accumulation,
        schedule=schedule,
        data_version=str(getattr(recipe, "data_version", "")),
    )


def _chooses_precision(recipe: Recipe, training: Training, precision: Precision) -> bool:
    """Does the loop enter autocast by itself, for all one can tell?

    A scaler that the configured precision has no use for says so: what the loop computes in is
    then not the config's to say.
    """
    scaled = training.scaler is not None and training.scaler.is_enabled()
    return recipe.step is not None and scaled and not precision.uses_scaler


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A micro-batch with every tensor on ``device``."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def count_tokens(batch: Batch) -> int:
    """Tokens of a micro-batch: elements of its first tensor if those are integers, else samples."""
    if isinstance(batch, Tensor):
        integers = not batch.is_floating_point() and not batch.is_complex()
        return batch.numel() if integers or batch.dim() == 0 else batch.shape[0]
    entries = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | tuple | list):
        return next((found for entry in entries if (found := count_tokens(entry))), 0)
    return 0


MOST_TOLD = 200
"""Characters of an exception's text that are told: some print whole tensors."""


def shortened(text: str) -> str:
    """A text in one line of at most ``MOST_TOLD`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_TOLD else f"{line[: MOST_TOLD - 1].rstrip()}…"


def told(error: BaseException) -> str:
    """An exception in one line, with the last place outside torch that it passed.

    One that another rank raised brings its own line.
    """
    elsewhere = getattr(error, "told_elsewhere", None)
    if isinstance(elsewhere, str):
        return elsewhere
    torch_home = str(Path(torch.__file__).parent)
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(torch_home):
            place = f" ({Path(file).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    text = shortened(str(error)).removesuffix("." if place else "")
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
