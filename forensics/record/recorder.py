"""The recorder that any training loop can call: it writes the run directory."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from forensics.errors import RecordingStoppedError, TrainingRaisedError, UsageError
from forensics.record.activation_hooks import ActivationHooks
from forensics.record.clipping import GradNorms
from forensics.record.continuing import continued
from forensics.record.disk_guard import DiskGuard
from forensics.record.extra_columns import ExtraColumns
from forensics.record.loop_watch import LoopWatch
from forensics.record.manifest_keeper import ManifestKeeper
from forensics.record.options import FREE_EXTRAS
from forensics.record.parameters import ArrivalOrder, learning_rates, tracked_parameters
from forensics.record.provenance import describe_run
from forensics.record.ranks.following import FollowingFiles, FollowingKeeper
from forensics.record.ranks.rank_record import RankRecord
from forensics.record.ranks.world import current_world, unwrapped
from forensics.record.run_directory import changing
from forensics.record.run_files import RunFiles
from forensics.record.snapshots import Snapshot, SnapshotTaker
from forensics.record.step_log import SkipLog, StepLog
from forensics.runlog.files import RunLock
from forensics.runlog.manifest import MANIFEST_NAME, Ended, Manifest, SavedAt
from forensics.runlog.schema import CANONICAL_NAMES, spec_of

MOST_BAD_SNAPSHOTS = 1000
"""Bad steps in a row that get a snapshot each; a run that is dead all night fills no disk."""


class Recorder:
    """Writes one run directory, a step at a time.

    A loop of your own calls ``gradients()`` between unscale and clip, and ``end_step(loss)`` last::

        with Recorder("runs/x", model, optimizer, scaler=scaler, max_norm=1.0) as recorder:
            for inputs, targets in data:
                ...
                scaler.unscale_(optimizer)
                recorder.gradients()
                clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                recorder.end_step(loss)

    Whether the step was skipped, and the norm after the clip, are found out by hooks. The
    reference step, which knows both, calls ``observe`` and ``write`` instead. What goes wrong on
    the disk never reaches the loop: it is said once a kind of file and noted in ``run.json``.

    Args:
        run_dir: the run directory; made where it is missing.
        model: on its device.
        optimizers: one or several.
        scaler: the loop's GradScaler, if it has one.
        ema: an average with ``shadow`` values by name, if there is one.
        max_norm: the clip threshold, as the record shall say; None where nothing clips.
        snapshot_every: steps between per-parameter snapshots; 0: on bad steps only.
        activations: take activation statistics in the steps of regular snapshots.
        extras: further columns of the step log, of ``options.OPTIONAL_EXTRAS``.
        log_every: optional extras fill the rows whose step it divides.
        own_loop: False under the reference step: no hooks on the optimizers.
        manifest: what is known of the run; by default read off the arguments. With segments it
            is that of a run being resumed, and rows are appended.
        first_step: index of the next step. Above 0 a run in the directory is continued: what it
            has from that step on is moved to ``superseded/``.
        arrival: in which order gradients arrive.
        lock: the lock that the caller holds on the directory; by default one is taken here.
        say: told in one line what the user should know.

    Raises:
        UsageError: the directory holds a run already or is in use, or an unknown extra column.
        InputError: the directory cannot be made or written.
    """

    replaying = False

    def __init__(
        self,
        run_dir: str | Path,
        model: nn.Module,
        optimizers: Optimizer | Sequence[Optimizer],
        *,
        scaler: GradScaler | None = None,
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
    ) -> None:
        self.run_dir = Path(run_dir)
        world = current_world()
        wrapped, model = model, unwrapped(model)
        trained = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        parameters = tracked_parameters(model, trained)
        known = manifest or describe_run(model, trained, scaler=scaler, max_norm=max_norm)
        self.columns = columns_of(len(learning_rates(trained)), extras)
        self._lock: RunLock | None = None
        if lock is None and world.leads:
            self._lock = self._take_directory(resume=first_step > 0)
            known = continued(self.run_dir, known, self.columns, first_step)
        self.guard = DiskGuard(self._lost)
        self.guard.step = first_step
        self._say = say
        known = replace(known, columns=self.columns, world_size=world.size, rank=world.rank)
        keeper_of = ManifestKeeper if world.leads else FollowingKeeper
        self.keeper = keeper_of(
            self.run_dir,
            replace(known, post_clip="measured" if own_loop else "derived"),
            self.guard,
            first_step=first_step,
        )
        self.keeper.update()
        self._files: RunFiles | FollowingFiles = FollowingFiles()
        if world.leads:
            appends = bool(known.segments)
            self._files = RunFiles(self.run_dir, self.columns, self.guard, append=appends)
        self._ranks: RankRecord | None = None
        if world.size > 1:
            self._ranks = RankRecord(
                self.run_dir,
                world,
                wrapped,
                parameters,
                self.columns,
                self.guard,
                first_step=first_step,
            )
        self._snapshots = SnapshotTaker(model, parameters, trained, ema)
        self._snapshot_every = snapshot_every if world.leads else 0
        self._hooks = ActivationHooks(model) if activations and world.leads else None
        self._extras = ExtraColumns(extras, parameters, ema, log_every)
        self._arrival = arrival or ArrivalOrder(parameters, known.arrival_order)
        self._watch = (
            LoopWatch(
                parameters,
                trained,
                scaler,
                measure_post_clip=max_norm is not None,
                first_step=first_step,
                arrival=self._arrival,
            )
            if own_loop
            else None
        )
        earlier = known.loop.get("first_reapplied", 0) < first_step  # else it was superseded
        self._loop_before = known.loop if earlier else {}
        self._step = first_step
        self._began = time.perf_counter()
        self._snapshot: Snapshot | None = None
        self._bad_in_a_row = 0
        self._notes: dict[str, Any] = {}
        self.last: StepLog | SkipLog | None = None
        self._arm()

    @property
    def next_step(self) -> int:
        """Index of the step under way or to come."""
        return self._step

    @property
    def ended(self) -> Ended | None:
        """How the run ended; None while it goes on."""
        return self.keeper.manifest.ended

    # -- what a loop of one's own calls ---------------------------------------------------

    def gradients(self) -> float:
        """Call between unscale and clip: takes the norms, returns the global L2 norm."""
        watch = self._own_loop()
        norms = watch.gradients()
        self.observe(norms, scaled=watch.grads_scaled)
        return norms.total

    def end_step(self, loss: Tensor | float) -> None:
        """Call last: finds out what the step came to and writes its row.

        Args:
            loss: unscaled, the mean over all micro-batches.
        """
        watch = self._own_loop()
        before = watch.reapplied
        self.write(watch.end_step(loss))
        if watch.reapplied > before == 0:
            self.keeper.update(loop=self._loop())  # a killed run says so, too

    def note(self, **cells: Any) -> None:
        """Values for columns that only the loop knows (``epoch``, ``val_loss``), for this row."""
        own = set(self._ranks.columns) if self._ranks is not None else set()
        if odd := sorted(cells.keys() - set(self.columns) - own):
            raise UsageError(f"{odd[0]!r} is no column of this recording", where="Recorder.note")
        self._notes.update(cells)

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """The loop has saved its state somewhere: ``run.json`` remembers where.

        Args:
            path: the file or folder.
            step: the step that this is the state before; default the next one.
        """
        at = self._step if step is None else step
        where = os.path.relpath(path, self.run_dir)
        kept = [s for s in self.keeper.manifest.states if s.step < at]
        self.keeper.update(states=(*kept, SavedAt(at, where)))

    def count_tokens(self, tokens: int) -> None:
        """How many tokens (or samples) the step under way consumes, for ``tokens_per_s``."""
        self._extras.count_tokens(tokens)

    # -- what the reference step calls ----------------------------------------------------

    def observe(self, grads: GradNorms, *, scaled: bool = False) -> None:
        """The gradients before the clip: snapshot them where the step is due, or bad.

        Args:
            grads: as measured.
            scaled: they are still multiplied by the loss scale.
        """
        if self._ranks is not None:
            self._ranks.reduced()
        if self._extras.due(self._step):
            self._extras.before_update()
        bad = bool(grads.nonfinite) or not math.isfinite(grads.total)
        if self._due() or (bad and self._bad_in_a_row < MOST_BAD_SNAPSHOTS):
            self._take(grads, scaled)

    def write(self, log: StepLog | SkipLog) -> None:
        """The finished step: on disk before this returns, as far as the disk allows."""
        self.last, self.guard.step = log, log.step
        if log.bad and self._snapshot is None and self._bad_in_a_row < MOST_BAD_SNAPSHOTS:
            self._take(None)
        self._bad_in_a_row = self._bad_in_a_row + 1 if log.bad else 0
        cells = self._extra_cells(log)
        row = {**log.row(), **cells, **self._notes, "time_s": self._elapsed()}
        self._files.write_row(row)
        if self._ranks is not None:
            self._ranks.write(row)
        self._files.write_snapshot(self._snapshot)
        if self._hooks is not None and self._hooks.armed:
            self._files.write_activations(log.step, *self._hooks.collect(log.scaler_scale))
        self._snapshot, self._notes = None, {}
        self._step = log.step + 1
        if not self.keeper.manifest.arrival_order and self._arrival.settled:
            self.keeper.update(arrival_order=tuple(self._arrival.names))
        self._arm()

    # -- the end --------------------------------------------------------------------------

    def close(self, ended: Ended | None = None) -> None:
        """Close all files and say how the run ended; by default ``finished``. Safe to repeat."""
        if self._files.closed:
            return
        if self._watch is not None:
            self.keeper.manifest = replace(self.keeper.manifest, loop=self._loop())
            self._watch.close()
        if self._hooks is not None:
            self._hooks.disarm()
        self._files.write_snapshot(self._snapshot)
        self._files.close()
        ended = ended or Ended("finished", self._step - 1 if self._step else None)
        self.keeper.close(ended)
        if self._ranks is not None:
            self._ranks.close(ended)
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt):
            self.close(Ended("interrupted", self._step))
        elif isinstance(error, RecordingStoppedError):
            self.close(Ended("alarm", self._step - 1, error.what))
        elif isinstance(error, TrainingRaisedError):
            self.close(Ended("exception", self._step, error.what))
        else:
            self.close(Ended("exception", self._step, f"{type(error).__name__}: {error}"))

    # -- inside ---------------------------------------------------------------------------

    def _take(self, grads: GradNorms | None, scaled: bool = False) -> None:
        """A snapshot of the step under way; a device too full for it costs the snapshot only."""
        if isinstance(self._files, FollowingFiles):
            return
        with self.guard.writing("params", torch.OutOfMemoryError):
            self._snapshot = self._snapshots.take(self._step, grads, scaled=scaled)

    def _due(self) -> bool:
        return self._snapshot_every > 0 and self._step % self._snapshot_every == 0

    def _arm(self) -> None:
        if self._hooks is not None and self._due():
            self._hooks.arm(gradients=self._step == 0)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began

    def _extra_cells(self, log: StepLog | SkipLog) -> dict[str, Any]:
        if not self._extras.due(log.step):
            return {}
        if log.skipped and not self._extras.gathered:
            self._extras.before_update()  # nothing has changed: this still is the state before
        cells, updates = self._extras.after_update()
        if self._snapshot is not None:
            self._snapshot.add_updates(updates)
        return cells

    def _loop(self) -> dict[str, int]:
        """What the hooks saw this loop do, over all segments; empty where it is as it should be."""
        watch, known = self._own_loop(), self._loop_before
        if not watch.reapplied:
            return dict(known)
        first = watch.first_reapplied or 0
        return {
            "reapplied_steps": known.get("reapplied_steps", 0) + watch.reapplied,
            "first_reapplied": min(first, known.get("first_reapplied", first)),
        }

    def _own_loop(self) -> LoopWatch:
        if self._watch is None:
            raise UsageError("this recorder belongs to the reference step", where="Recorder")
        return self._watch

    def _take_directory(self, *, resume: bool) -> RunLock:
        if not resume and (self.run_dir / MANIFEST_NAME).exists():
            raise UsageError(
                "holds a run already",
                where=self.run_dir,
                hint="choose another directory, or give first_step= to go on with it",
            )
        lock = RunLock(self.run_dir, takeover=resume)
        with changing(self.run_dir):
            self.run_dir.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        return lock

    def _lost(self, line: str) -> None:
        """The first failure of a kind of file: tell the user, and the run itself."""
        self._say(line)
        self.keeper.update()


def columns_of(groups: int, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """All columns of a step log.

    Args:
        groups: parameter groups over all optimizers; each beyond the first gets its ``lr_N``.
        extras: optional columns; UsageError for one without a fixed meaning.
    """
    if unknown := [name for name in extras if spec_of(name) is None]:
        raise UsageError(f"no extra column is called {unknown[0]!r}", where="extras")
    further = [f"lr_{i}" for i in range(1, groups)]
    names = (*CANONICAL_NAMES, *FREE_EXTRAS, *further, *extras)
    return tuple(dict.fromkeys(names))
