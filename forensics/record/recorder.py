"""The recorder that any training loop can call: it writes the run directory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from forensics.errors import UsageError
from forensics.record.being_read import refuse_while_read
from forensics.record.by_hand import trained_by
from forensics.record.checkpoints import load_checkpoint
from forensics.record.clipping import GradNorms
from forensics.record.disk_guard import DiskGuard
from forensics.record.exits import close_at_exit, forget
from forensics.record.forks import tell_in_forks
from forensics.record.loop_notes import LoopNotes
from forensics.record.loop_scalers import as_scalers
from forensics.record.loop_watch import LoopWatch
from forensics.record.manifest_keeper import ManifestKeeper, ending_of
from forensics.record.micro_batches import MicroBatches
from forensics.record.opening import Opened, open_directory
from forensics.record.options import KeepPolicy
from forensics.record.own_checkpoints import training_of
from forensics.record.parameters import (
    ArrivalOrder,
    describe_parameters,
    held_by,
    learning_rates,
    tracked_parameters,
)
from forensics.record.plain_names import named_parameters
from forensics.record.provenance import describe_run
from forensics.record.ranks.following import FollowingKeeper
from forensics.record.ranks.sharded_checkpoints import checkpoints_of
from forensics.record.ranks.world import current_world, unwrapped
from forensics.record.rng import restore_rng
from forensics.record.run_columns import columns_of as columns_of
from forensics.record.step_log import SkipLog, StepLog
from forensics.record.step_output import StepOutput, Wanted
from forensics.runlog.files import RunLock
from forensics.runlog.manifest import Ended, Manifest, SavedAt


class Recorder:
    """Writes one run directory, a step at a time.

    A loop of your own calls ``gradients(loss)`` between unscale and clip, and ``end_step()`` last::

        with Recorder("runs/x", model, optimizer, scaler=scaler, max_norm=1.0) as recorder:
            for inputs, targets in data:
                ...
                scaler.unscale_(optimizer)
                recorder.gradients(loss)
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                recorder.end_step()

    Hooks find out whether the step was skipped, and the norm after the clip. The reference step
    calls ``observe`` and ``write`` instead. What goes wrong on the disk or in the recorder never
    reaches the loop: it is said once and noted in ``run.json``.

    Args:
        run_dir: the run directory; made where it is missing.
        model: on its device; in whatever wrappers, it is recorded under its plain names.
        optimizers: one or several; None where the loop changes the parameters by hand.
        scaler: the loop's GradScaler or several of them, if it has any.
        ema: an average, if there is one; its ``shadow`` values by name are in snapshots.
        max_norm: the clip threshold; None where nothing clips.
        snapshot_every: steps between per-parameter snapshots; 0: on bad steps only.
        activations: take activation statistics in the steps of regular snapshots.
        extras, log_every: further columns (``options.OPTIONAL_EXTRAS``), filled so often.
        own_loop: False under the reference step: no hooks on the optimizers.
        manifest: what is known of the run; by default read off the arguments.
        first_step: the next step. Above 0 a run in the directory is continued.
        arrival, lock: the order of gradients and the directory's lock, where the caller has them.
        say: told in a line what the user should know.
        checkpoint_every: steps between states saved in ``checkpoints/``; 0 saves none.
        keep: which of them stay: a ``KeepPolicy`` or its text.
        schedulers, extra: to be saved, too: one or several; further owners of state by name.
        resume: put the newest state that is there back, and go on from it.

    Raises:
        UsageError: the directory holds a run already or is in use, or an unknown extra column; or a
            file that is read for its recipe makes one.
        InputError: the directory cannot be written, or the state put back.
    """

    replaying = False

    def __init__(
        self,
        run_dir: str | Path,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer] | None,
        *,
        scaler: GradScaler | Sequence[GradScaler] | None = None,
        ema: Any = None,
        max_norm: float | None = None,
        snapshot_every: int = 100,
        activations: bool = False,
        extras: Sequence[str] = (),
        log_every: int = 1,
        own_loop: bool = True,
        manifest: Manifest | None = None,
        first_step: int = 0,
        arrival: ArrivalOrder | None = None,
        lock: RunLock | None = None,
        say: Callable[[str], None] = warnings.warn,
        checkpoint_every: int = 0,
        keep: KeepPolicy | str = "last:3",
        schedulers: Any = (),
        extra: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        refuse_while_read()
        self.run_dir = Path(run_dir).absolute()  # the loop may change its folder
        world = current_world()
        wrapped, model = model, unwrapped(model)
        trained, self._by_hand = trained_by(model, optimizers)
        parameters = tracked_parameters(model, trained)
        policy = KeepPolicy.parse(keep)
        scalers = as_scalers(scaler)
        first = scalers[0] if scalers else None
        known = manifest or describe_run(model, trained, scaler=first, max_norm=max_norm)
        self.columns = columns_of(len(learning_rates(trained)), extras)
        self._say = say
        saved = training_of(
            model, [] if self._by_hand else trained, scalers, ema, schedulers, extra or {}
        )
        opened = Opened(known, first_step)
        if lock is None:
            opened = open_directory(
                self.run_dir,
                known,
                self.columns,
                saved,
                first_step=first_step,
                resume=resume,
                leads=world.leads,
                say=self._tell,
                load=partial(
                    load_checkpoint, parameters=dict(named_parameters(model)), rank=world.rank
                ),
            )
        known, first_step, self._lock = opened.manifest, opened.first_step, opened.lock
        self.guard = DiskGuard(self._lost)
        self.guard.step = first_step
        known = replace(known, columns=self.columns, world_size=world.size, rank=world.rank)
        known = replace(known, post_clip="measured" if own_loop else "derived")
        keeper_of = ManifestKeeper if world.leads else FollowingKeeper
        self.keeper = keeper_of(self.run_dir, known, self.guard, first_step=first_step)
        self.keeper.update()
        self._output = StepOutput(
            self.run_dir,
            world,
            model,
            wrapped,
            parameters,
            trained,
            ema,
            Wanted(self.columns, snapshot_every, activations, extras, log_every, checkpoint_every),
            self.guard,
            first_step=first_step,
            append=bool(known.segments),
        )
        self._arrival = arrival or ArrivalOrder(parameters, known.arrival_order)
        self._watch, self._micro = None, MicroBatches()
        if own_loop:
            notes = LoopNotes(known.loop, first_step)
            if manifest is None:  # a trainer knows how it accumulates
                self._micro = MicroBatches(notes, parameters, trained, self.guard.shielding)
            self._watch = LoopWatch(
                parameters,
                trained,
                scaler,
                measure_post_clip=max_norm is not None and world.leads,  # it alone has a column
                max_norm=max_norm,
                first_step=first_step,
                arrival=self._arrival,
                notes=notes,
                defer=parameters[0][1].device.type != "cpu",  # a CPU has nothing to wait for
                shield=self.guard.shielding,
                measure=self._output.measure,
            )
        for clause in self._output.lacking:
            self._lack(clause)
        self._model, self._trained, self._held_by = model, trained, held_by(trained)
        self._checkpoints = checkpoints_of(
            world,
            self._output.shards,
            self.run_dir,
            saved,
            model,
            self.guard,
            every=self._output.checkpoint_every,
            keep=policy,
            announce=lambda steps: self.keeper.update(checkpoints=steps),
            point=opened.point,
        )
        self._step = first_step
        self.last: StepLog | SkipLog | None = None
        self._rng = opened.point.random_state(leads=world.leads) if opened.point else None
        with self.guard.shielding("checkpoints"):
            self._checkpoints.begin(first_step)
        tell_in_forks(self._in_fork)
        if own_loop:
            close_at_exit(self)

    @property
    def next_step(self) -> int:
        """Index of the step under way or to come."""
        return self._step

    @property
    def ended(self) -> Ended | None:
        """How the run ended; None while it goes on."""
        return self.keeper.manifest.ended

    # -- what a loop of one's own calls ---------------------------------------------------

    def resume(self) -> int:
        """Call where the loop begins: puts the random state back, too; returns the next step."""
        if self._rng is not None:
            with self.guard.shielding("resume()"):
                restore_rng(self._rng)
        self._rng = None
        return self._step

    def gradients(
        self,
        loss: Tensor | float | None = None,
        *,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
    ) -> float:
        """Call between unscale and clip: takes the norms, returns the global L2 norm.

        Args:
            loss: as ``end_step`` takes it. Given here, it costs no wait of its own.
            optimizers: whose gradients, where several step one after the other and each clips its
                own; by default of all that have not stepped with them yet.

        Returns:
            The norm; 0 where there is no gradient. Where measuring failed it is that of torch, for
            the clip that goes by it. Of sharded gradients that not all ranks record it is 0: nobody
            knows it, and a clip by 0 changes nothing, where one by NaN would spoil them all.
        """
        watch, total = self._own_loop(), None
        self._output.measuring()
        with self.guard.shielding("gradients()"):
            self._follow()
            norms = watch.gradients(self._micro.or_sum(loss), optimizers)
            total = norms.total
            self._complete(watch)
            self.observe(watch.norms or norms, scaled=watch.grads_scaled)
        if total is None:
            with self.guard.shielding("torch's own norm"):
                total = self._output.norm_without(optimizers or watch.optimizers)
        if self._output.apart:
            return 0.0
        return math.nan if total is None else total

    def end_step(self, loss: Tensor | float | None = None) -> None:
        """Call last: finds out what the step came to and writes its row.

        Args:
            loss: unscaled, the mean over all micro-batches; not needed where ``gradients`` had it.
        """
        watch, step = self._own_loop(), self._step
        with self.guard.shielding("end_step()"):
            if watch.norms is None:
                self._follow()
            if self._by_hand is not None and watch.norms is not None:
                self._by_hand.step()
            watch.resolve()  # the row before this one comes first
            self._complete(watch)
            self.write(watch.end_step(self._micro.end(loss, step, closure=watch.closure)))
            if (notes := watch.notes.as_manifest()).keys() != self.keeper.manifest.loop.keys():
                self.keeper.update(loop=notes)  # a killed run says so, too
        self._step = watch.step_index = self.guard.step = step + 1
        with self.guard.shielding("checkpoints"):
            self._checkpoints.after(step, self.last)

    def add_loss(self, loss: Tensor | float) -> None:
        """Call beside the backward of each micro-batch, with what goes backward.

        Their sum is the loss of the row where ``gradients`` and ``end_step`` are given none: the
        mean over the micro-batches in a loop that divides by their number.
        """
        with self.guard.shielding("add_loss()"):
            self._micro.add(loss)

    def note(self, **cells: Any) -> None:
        """Values for columns that only the loop knows (``epoch``, ``val_loss``), for this row."""
        with self.guard.shielding("note()"):
            for odd in self._output.note(cells):
                self._lack(f"{odd}: no column of this recording; name it in extras=")

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """The loop has saved its state somewhere: ``run.json`` remembers where.

        Args:
            path: the file or folder.
            step: the step that this is the state before; default the next one.
        """
        at = self._step if step is None else step
        with self.guard.shielding("saved()"):  # no relative path leads to another drive
            where = os.path.relpath(path, self.run_dir)
            kept = [s for s in self.keeper.manifest.states if s.step < at]
            self.keeper.update(states=(*kept, SavedAt(at, where)))

    def reducing(self) -> AbstractContextManager[None]:
        """Call before a collective of the loop's own that may wait for other ranks, or around it.

        Where one of them hangs, the report then tells which. DDP's reduction is noticed by itself.
        """
        with self.guard.shielding("reducing()"):
            return self._output.waiting()
        return nullcontext()

    def count_tokens(self, tokens: int) -> None:
        """How many tokens (or samples) this step consumes, for ``tokens_per_s``."""
        self._output.extras.count_tokens(tokens)

    # -- what the reference step calls ----------------------------------------------------

    def observe(self, grads: GradNorms, *, scaled: bool = False) -> None:
        """The gradients before the clip: snapshot them where the step is due, or bad.

        Args:
            grads: as measured.
            scaled: they are still multiplied by the loss scale.
        """
        self._output.observe(self._step, grads, scaled=scaled)

    def write(self, log: StepLog | SkipLog) -> None:
        """The finished step: on disk before this returns, as far as the disk allows."""
        self.last, self.guard.step = log, log.step
        hold = self._watch is not None and self._watch.waiting
        self._output.write(log, hold=hold, arrival=self._arrival.names)
        self._step = log.step + 1
        if not self.keeper.manifest.arrival_order and self._arrival.settled:
            self.keeper.update(arrival_order=tuple(self._arrival.names))

    # -- the end --------------------------------------------------------------------------

    def close(self, ended: Ended | None = None) -> None:
        """Close all files and say how the run ended; by default ``finished``. Safe to repeat."""
        forget(self)
        if self._output.closed:
            return
        if ended is not None:  # what follows may wait for ranks that are gone, until it is killed
            with self.guard.shielding("close()"):
                self.keeper.update(ended=ended)
                self._output.ended(ended)
        with self.guard.shielding("close()"):
            self._checkpoints.end(self._step, finished=ended is None)
            if self._watch is not None:
                self._watch.resolve()
        with self.guard.shielding("close()"):
            if self._watch is not None:
                self._complete(self._watch)
                self._output.complete(None)  # its norm could not be read
                notes = self._watch.notes.as_manifest()
                self.keeper.manifest = replace(self.keeper.manifest, loop=notes)
                self._watch.close()
                self._micro.close()
            self._output.finish()
        with self.guard.shielding("close()"):
            self._output.close()
            ended = ended or Ended("finished", self._step - 1 if self._step else None)
            self.keeper.close(ended)
            self._output.close_rank(ended)
        if self._lock is not None:
            with suppress(OSError):
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._watch is not None:
            with self.guard.shielding("close()"):
                self._watch.ended_by(error)
        self.close(None if error is None else ending_of(error, self._step))

    # -- inside ---------------------------------------------------------------------------

    def _in_fork(self) -> None:
        """This process is a fork of the one that records: nothing of it goes into the run."""
        self._lock, self.keeper = None, FollowingKeeper.of(self.keeper)
        self._output.leave(self._tell)
        self._checkpoints.leave()

    def _complete(self, watch: LoopWatch) -> None:
        """The row that waited for its norm after the clip, or was left without it."""
        if not watch.waiting:
            self._output.complete(None if watch.late is None else watch.late.grad_l2_post_clip)
            watch.late = None

    def _follow(self) -> None:
        """Where the optimizers hold other parameters than before, those are recorded."""
        if (held := held_by(self._trained)) == self._held_by:
            return
        self._held_by = held
        parameters = tracked_parameters(self._model, self._trained)
        self._own_loop().parameters = parameters
        self._output.follow(parameters)
        self._checkpoints.follow()
        self.keeper.update(parameters=describe_parameters(self._model, self._trained))
        for i in range(1, len(learning_rates(self._trained))):
            if f"lr_{i}" not in self.columns:
                self._lack(f"lr_{i}: its group was added at step {self._step:,}, after the header")

    def _lack(self, clause: str) -> None:
        """Something that this run will not have: say it once, and in ``run.json``."""
        if clause not in self.guard.missing:
            self.guard.lacks(clause)
            self._lost(clause)

    def _own_loop(self) -> LoopWatch:
        if self._watch is None:
            raise UsageError("this recorder belongs to the reference step", where="Recorder")
        return self._watch

    def _lost(self, line: str) -> None:
        """The first failure of a kind of file: tell the user, and the run itself."""
        self._tell(line)
        self.keeper.update()

    def _tell(self, line: str) -> None:
        """Where warnings are errors, one of ours still ends no training."""
        with suppress(Exception):
            self._say(line)
