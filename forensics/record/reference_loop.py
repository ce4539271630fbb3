"""The plain loop: a recipe is built, trained by the reference step, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from forensics.errors import (
    ForensicsError,
    InputError,
    RecordingStoppedError,
    TrainingRaisedError,
    UsageError,
)
from forensics.record.assembly import (
    assemble,
    count_tokens,
    describe_recording,
    to_device,
    told,
)
from forensics.record.checkpoints import CheckpointStore
from forensics.record.config import Config
from forensics.record.disk_guard import still_missing
from forensics.record.health import HealthScan
from forensics.record.options import KeepPolicy, RecordOptions
from forensics.record.parameters import ArrivalOrder, learning_rates, tracked_parameters
from forensics.record.precision import Precision, choose_device, choose_precision
from forensics.record.ranks.rank_rng import KEY as RANKS
from forensics.record.ranks.rank_rng import RankRng
from forensics.record.ranks.replica import DataParallelReplica, Replica, replica_of
from forensics.record.ranks.share import all_get_the_same
from forensics.record.ranks.world import World, current_world, led_by_rank_zero
from forensics.record.recipe import Recipe, Training
from forensics.record.recorder import Recorder, columns_of
from forensics.record.run_directory import (
    ResumePoint,
    changing,
    check_columns,
    clear_run,
    find_resume_point,
    locked_directory,
)
from forensics.record.skip_rate import SkipRateAlarm, calibration_skips
from forensics.record.threads import threads_for
from forensics.record.train_step import AmpTrainState
from forensics.record.training_state import gather_state, put_part, restore_state
from forensics.record.unread_settings import WatchedSettings, clip_is_unasked
from forensics.runlog.files import RunLock, supersede
from forensics.runlog.manifest import Ended, Manifest

__all__ = ["RecordOptions", "record_run"]

Say = Callable[[str], None]
OnStep = Callable[[int, int], None]


def record_run(
    recipe: Recipe,
    config: Config,
    options: RecordOptions,
    *,
    on_step: OnStep | None = None,
    say: Say = print,
) -> Ended:
    """Train a recipe and record it.

    Under an initialised ``torch.distributed`` every rank calls it: all train as replicas of one
    model, rank 0 writes the run, and each rank its own log beside it.

    Args:
        recipe: what to train.
        config: what decides the computation; copied into ``run.json``.
        options: where and how to record.
        on_step: called after each step with the steps done and the steps in all.
        say: told in one line what the user should know.

    Returns:
        How the run ended: ``finished``.

    Raises:
        UsageError, InputError: the directory or the settings do not allow it; nothing was changed.
        RecordingStoppedError: the skip-rate alarm ended the run; everything is on disk.
        TrainingRaisedError: the training raised; everything up to that step is on disk.
        KeyboardInterrupt: recorded as ``interrupted``, and raised again.
    """
    with _directory(options, say, current_world()) as lock:
        point = find_resume_point(options, recipe.name, config, say) if options.resume else None
        with _threads_of(point):
            recording = _begin(_set_up(recipe, config, options, say), point, lock)
            with recording.recorder as recorder:
                recording.train(on_step)
    assert recorder.ended is not None
    return recorder.ended


@dataclass(frozen=True)
class _Setting:
    """What is going to be recorded, before the run directory is touched."""

    recipe: Recipe
    config: Config
    watched: WatchedSettings
    options: RecordOptions
    say: Say
    device: torch.device
    precision: Precision
    training: Training
    manifest: Manifest
    world: World
    replica: Replica

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the step log."""
        return columns_of(len(learning_rates(self.training.optimizers)), self.options.extras)


@dataclass(frozen=True)
class _Recording:
    """A training under way and everything that watches it."""

    setting: _Setting
    state: AmpTrainState | None
    recorder: Recorder
    alarm: SkipRateAlarm
    checkpoints: CheckpointStore | None
    first_step: int

    def train(self, on_step: OnStep | None) -> None:
        """Every step from the first to the last, with a checkpoint before some and at the end."""
        steps, every = self.setting.config.steps, self.setting.options.checkpoint_every
        recipe = self.setting.recipe
        if self.first_step >= steps:
            self.setting.say(f"{self.setting.options.out}: all {steps:,} steps are done already")
        for step in range(self.first_step, steps):
            resumed_here = step == self.first_step > 0
            if every and step % every == 0 and not resumed_here:
                self.save(step)
            if step == self.first_step and clip_is_unasked(type(recipe), self.setting.config):
                self.step_and_see_the_clip(step)
            else:
                self.step(step)
            self.watch(step)
            if on_step is not None:
                on_step(step + 1, steps)
        if every and self.first_step < steps:
            self.save(steps)

    def step(self, step: int) -> None:
        """The reference step, or the recipe's own; TrainingRaisedError for what it raises."""
        try:
            recipe, device = self.setting.recipe, self.setting.device
            micro_batches = [to_device(batch, device) for batch in recipe.micro_batches(step)]
            self.recorder.count_tokens(sum(map(count_tokens, micro_batches)))
            if self.state is not None:
                self.state.step_on(micro_batches)
                return
            assert recipe.step is not None
            trained = replace(self.setting.training, model=self.setting.replica.module)
            loss = recipe.step(trained, micro_batches, self.recorder)
            if self.recorder.next_step == step:  # it did not call end_step itself
                self.recorder.end_step(loss)
        except ForensicsError:
            raise
        except Exception as error:
            raise TrainingRaisedError(told(error), where=f"step {step}") from error

    def step_and_see_the_clip(self, step: int) -> None:
        """A step of the recipe's own; one that never asks for the threshold does not clip at it."""
        recipe, watched = self.setting.recipe, self.setting.watched
        recipe.config = watched.config
        try:
            self.step(step)
        finally:
            recipe.config = self.setting.config
        if not watched.has_read("max_norm"):
            self.recorder.keeper.update(max_norm=None)

    def watch(self, step: int) -> None:
        """Pin a checkpoint where trouble begins; speak, or stop, where too much is skipped."""
        log = self.recorder.last
        assert log is not None
        if self.checkpoints is not None:
            self.checkpoints.observe(step, log.loss, skipped=log.skipped, bad=log.bad)
        trouble = self.alarm.update(step, log.skipped)
        if trouble is None:
            return
        options = self.setting.options
        if not options.abort_on_skip_rate:
            self.setting.say(trouble)
            return
        if options.checkpoint_every:
            self.save(step + 1)
        hint = f"forensics report {options.out}"
        raise RecordingStoppedError(trouble, where=options.out, hint=hint)

    def save(self, step: int) -> None:
        """A checkpoint of the state before ``step``; every rank must come here."""
        parts: dict[str, Any] = {"alarm": self.alarm}
        if self.setting.world.size > 1:
            parts[RANKS] = RankRng(self.setting.world)
        if self.checkpoints is not None:
            parts["checkpoints"] = self.checkpoints
        state, missing = gather_state(self.setting.training, step, parts)
        if self.checkpoints is not None:
            self.checkpoints.save(step, state, missing)


@contextmanager
def _directory(options: RecordOptions, say: Say, world: World) -> Iterator[RunLock | None]:
    """The directory, locked by rank 0 for all ranks."""
    with ExitStack() as stack:
        lock = None
        with led_by_rank_zero(world):
            if world.leads:
                lock = stack.enter_context(locked_directory(options, say))
        yield lock


def _set_up(recipe: Recipe, config: Config, options: RecordOptions, say: Say) -> _Setting:
    """Build the training."""
    world = current_world()
    device = choose_device(config.device, say)
    precision = choose_precision(config.precision, device, say)
    recipe.rank, recipe.world_size = world.rank, world.size
    watched = WatchedSettings(config)
    training = assemble(recipe, config, precision, device, say, watched=watched)
    if recipe.step is None:
        precision.check(training.scaler)
    manifest = describe_recording(recipe, config, training, precision, options.recipe_file)
    manifest = replace(manifest, recording=options.to_manifest())
    replica = replica_of(training.model, world)
    RankRng(world).seed(config.seed)
    return _Setting(
        recipe, config, watched, options, say, device, precision, training, manifest, world, replica
    )


def _begin(setting: _Setting, point: ResumePoint | None, lock: RunLock | None) -> _Recording:
    """Open the run directory: cleared, continued or new."""
    recipe, config, options = setting.recipe, setting.config, setting.options
    training, manifest, first_step = setting.training, setting.manifest, 0
    if point is not None:
        manifest, first_step = _continue(setting, point), point.step
    elif options.overwrite:
        with led_by_rank_zero(setting.world), changing(options.out):
            if setting.world.leads:
                clear_run(options.out)
    if setting.world.size > 1 and all_get_the_same(recipe, first_step):
        setting.say(
            f"all {setting.world.size} ranks train on the same data: the recipe's batch() does "
            "not ask for self.rank"
        )
    parameters = tracked_parameters(training.model, training.optimizers)
    arrival = ArrivalOrder(parameters, manifest.arrival_order)
    recorder = Recorder(
        options.out,
        setting.replica.module,
        training.optimizers,
        scaler=training.scaler,
        ema=training.ema,
        max_norm=config.max_norm,
        snapshot_every=options.snapshot_every,
        activations=options.activations,
        extras=options.extras,
        log_every=options.log_every,
        own_loop=recipe.step is not None,
        manifest=manifest,
        first_step=first_step,
        arrival=arrival,
        lock=lock,
        say=setting.say,
    )
    if isinstance(setting.replica, DataParallelReplica):
        setting.replica.reducing = recorder.reducing
    state = None if recipe.step is not None else _reference_step(setting, recorder, arrival)
    try:
        alarm, checkpoints = _watchers(setting, recorder, point)
    except InputError as error:  # what is left of the state makes no sense
        recorder.close(Ended("exception", first_step, error.what))
        raise
    return _Recording(setting, state, recorder, alarm, checkpoints, first_step)


def _reference_step(setting: _Setting, recorder: Recorder, arrival: ArrivalOrder) -> AmpTrainState:
    training, config = setting.training, setting.config
    return AmpTrainState(
        training.model,
        training.optimizers,
        training.loss,
        precision=setting.precision,
        scaler=training.scaler,
        schedulers=training.schedulers,
        ema=training.ema,
        max_norm=config.max_norm,
        scale_floor=config.scaler.floor,
        recorder=recorder,
        replica=setting.replica,
        first_step=recorder.next_step,
        arrival=arrival,
        say=setting.say,
    )


def _watchers(
    setting: _Setting, recorder: Recorder, point: ResumePoint | None
) -> tuple[SkipRateAlarm, CheckpointStore | None]:
    """The skip-rate alarm and rank 0's checkpoint store, where the resumed run had left them."""
    options, policy = setting.options, setting.manifest.scaler
    alarm = SkipRateAlarm(
        max_rate=options.max_skip_rate,
        max_in_a_row=options.max_skips_in_a_row,
        exempt=calibration_skips(policy.init_scale) if policy and policy.enabled else 0,
    )
    checkpoints = (
        None
        if not setting.world.leads
        else CheckpointStore(
            options.out / "checkpoints",
            HealthScan(setting.training.model, setting.training.optimizers),
            recorder.guard,
            KeepPolicy.parse(options.keep),
            lambda steps: recorder.keeper.update(checkpoints=steps),
        )
    )
    if point is not None and point.state is not None:
        put_part("alarm", lambda s: alarm.load_state_dict(s["alarm"]), point.state, point.path)
        if checkpoints is not None:
            load = checkpoints.load_state_dict
            put_part("checkpoints", lambda s: load(s["checkpoints"]), point.state, point.path)
            checkpoints.judge_loaded(point.state)
    return alarm, checkpoints


def _continue(setting: _Setting, point: ResumePoint) -> Manifest:
    """Put the training back to the checkpoint and move aside what is going to be done again.

    Returns:
        The manifest as the run left it, but for a prolonged config.
    """
    before, now, out = point.manifest, setting.manifest, setting.options.out
    check_columns(point, setting.columns, out)
    if before.precision != now.precision:
        raise UsageError(
            f"was recorded in {before.precision} on {before.device}, "
            f"not in {now.precision} on {now.device}",
            where=out,
            hint="resume on the same kind of device, or set its precision",
        )
    for name, old in before.versions.items():
        if name in ("torch", "python") and old != now.versions.get(name):
            setting.say(
                f"recorded with {name} {old}, going on with {now.versions.get(name)}: "
                "rows may differ in their last bits"
            )
    if before.world_size != setting.world.size:
        raise UsageError(
            f"was recorded on {before.world_size} ranks, not on {setting.world.size}",
            where=out,
            hint="resume on as many; the batches of each depend on it",
        )
    if point.state is not None:
        restore_state(setting.training, point.state, where=point.path)
        RankRng(setting.world).restore(point.state)
    with led_by_rank_zero(setting.world), changing(out):
        if setting.world.leads:
            supersede(out, point.step)
    return replace(
        before,
        recipe=now.recipe,
        schedule=now.schedule,
        recording=now.recording,
        missing=still_missing(before.missing, point.step),
    )


@contextmanager
def _threads_of(point: ResumePoint | None) -> Iterator[None]:
    """The thread count of the recorded run while this one lasts: another computes other bits."""
    own = torch.get_num_threads()
    if point is not None:
        torch.set_num_threads(threads_for(point.manifest.threads))
    try:
        yield
    finally:
        torch.set_num_threads(own)
