"""The plain loop: a recipe, built, trained by the reference step and recorded."""

from __future__ import annotations

from collections.abc import Callable

from forensics.errors import TrainingRaisedError, UsageError
from forensics.record.config import Config
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.loss_scale import make_scaler
from forensics.record.options import RecordOptions
from forensics.record.precision import choose_device, choose_precision
from forensics.record.recipe import Recipe
from forensics.record.recorder import Recorder
from forensics.record.rng import seed_everything
from forensics.record.train_step import AmpTrainState
from forensics.runlog.manifest import Ended, Manifest

__all__ = ["RecordOptions", "record_run"]


def record_run(
    recipe: Recipe,
    config: Config,
    options: RecordOptions,
    *,
    on_step: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] = print,
) -> Ended:
    """Train ``recipe`` as ``config`` says and record it under ``options.out``."""
    if (options.out / "run.json").exists() and not options.overwrite:
        raise UsageError("holds a run already", where=options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(config.device, say)
    precision = choose_precision(config.precision, device, say)
    seeds = seed_everything(config.seed)
    recipe.config = config
    training = recipe.build(config)
    training.model.to(device)
    scaler = training.scaler or make_scaler(config.scaler, device, enabled=precision.uses_scaler)
    ema = training.ema or (
        ExponentialMovingAverage(training.model, config.ema_decay) if config.ema_decay else None
    )
    manifest = Manifest(
        recipe={"name": recipe.name, "config": config.to_dict()},
        seeds=seeds,
        device=device.type,
        precision=precision.name,
        max_norm=config.max_norm,
        accumulation=config.accumulation,
    )
    recorder = Recorder(options.out, manifest=manifest, extras=options.extras)
    state = AmpTrainState(
        training.model,
        training.optimizers,
        training.loss,
        precision=precision,
        scaler=scaler,
        schedulers=training.schedulers,
        ema=ema,
        max_norm=config.max_norm,
        scale_floor=config.scaler.floor,
        recorder=recorder,
        say=say,
    )
    step = 0
    try:
        for step in range(config.steps):
            if recipe.step is None:
                state.step_on(recipe.batch(step))
            else:
                raise UsageError("recipes with their own step are not recorded yet")
            if on_step is not None:
                on_step(step + 1, config.steps)
    except KeyboardInterrupt:
        recorder.close(Ended("interrupted", step))
        raise
    except Exception as error:
        recorder.close(Ended("exception", step, f"{type(error).__name__}: {error}"))
        raise TrainingRaisedError(str(error), where=f"step {step}") from error
    ended = Ended("finished", config.steps)
    recorder.close(ended)
    return ended
