"""Everything that a run gets of one step: its row, its snapshot, its statistics, its rank's row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.activation_hooks import ActivationHooks
from forensics.record.clipping import GradNorms, torchs_norm
from forensics.record.disk_guard import DiskGuard
from forensics.record.extra_columns import ExtraColumns
from forensics.record.local_part import is_distributed
from forensics.record.ranks.agreement import NO_LEADER, agreement, plan_of
from forensics.record.ranks.flat_shards import NAME, flat_shards
from forensics.record.ranks.following import FollowingFiles, ForkFiles
from forensics.record.ranks.rank_record import RankRecord
from forensics.record.ranks.shards import Shards
from forensics.record.ranks.world import World
from forensics.record.run_files import RunFiles
from forensics.record.snapshots import Snapshot, SnapshotTaker
from forensics.record.step_log import SkipLog, StepLog
from forensics.runlog.manifest import Ended

MOST_BAD_SNAPSHOTS = 1000
"""Bad steps in a row that get a snapshot each; a run that is dead all night fills no disk."""

_WHAT_TO_DO = (
    "make one on every rank; until then gradients() returns 0, which clips nothing, so clip by "
    "torch.nn.utils.clip_grad_norm_"
)

Named = Sequence[tuple[str, Tensor]]


@dataclass(frozen=True)
class Wanted:
    """What is recorded how often, as ``Recorder`` takes it."""

    columns: tuple[str, ...]
    snapshot_every: int = 100
    activations: bool = False
    extras: Sequence[str] = ()
    log_every: int = 1
    checkpoint_every: int = 0

    @property
    def plan(self) -> dict[str, Any]:
        """What decides in which steps something is taken of all ranks."""
        return {
            "extras": list(self.extras),
            "snapshot_every": self.snapshot_every,
            "log_every": self.log_every,
            "checkpoint_every": self.checkpoint_every,
        }


class StepOutput:
    """The files of one run that grow with it, on this rank.

    Args:
        run_dir: the run directory.
        world: this rank among all.
        model: without its wrappers.
        wrapped: as the loop trains it.
        parameters: (name, parameter) of the run.
        optimizers: those of the loop.
        ema: an average, or None.
        wanted: what to record.
        guard: what fails on the disk is noted there.
        first_step: index of the next step.
        append: continue the files that are there.
    """

    def __init__(
        self,
        run_dir: Path,
        world: World,
        model: nn.Module,
        wrapped: nn.Module,
        parameters: Named,
        optimizers: Sequence[Optimizer],
        ema: Any,
        wanted: Wanted,
        guard: DiskGuard,
        *,
        first_step: int,
        append: bool,
    ) -> None:
        self._model, self._optimizers, self._ema = model, optimizers, ema
        self._wanted, self._guard = wanted, guard
        self._files: RunFiles | FollowingFiles = FollowingFiles()
        if world.leads:
            self._files = RunFiles(run_dir, wanted.columns, guard, append=append)
        self._ranks: RankRecord | None = None
        if world.size > 1:
            self._ranks = RankRecord(
                run_dir, world, wrapped, parameters, wanted.columns, guard, first_step=first_step
            )
        self._leads = world.leads
        flat = flat_shards(wrapped) if world.size > 1 else None
        self.shards: Shards | None = None
        if flat is not None or any(is_distributed(p) for _, p in parameters):
            alike = [*plan_of(parameters, {} if flat is None else flat.shapes), first_step]
            apart, plan = agreement(world, run_dir, alike, wanted.plan)
            self._wanted = wanted = replace(wanted, **plan)
            apart = apart or ("" if flat is None else flat.flaw)
            self.shards = Shards(parameters, self.reducing, apart, flat)
        self._hooks = ActivationHooks(model) if wanted.activations and world.leads else None
        self.extras = ExtraColumns(
            () if self.apart else wanted.extras,
            parameters,
            ema,
            wanted.log_every,
            *(() if self.shards is None else (self.shards.added_up, self.shards.counts)),
        )
        self._snapshots = SnapshotTaker(model, parameters, optimizers, ema)
        self._began = time.perf_counter()
        self._snapshot: Snapshot | None = None
        self._taken = False
        self._bad_in_a_row, self._bad_grads = 0, False
        self._notes: dict[str, Any] = {}
        self._held: dict[str, Any] | None = None
        self._arm(first_step)

    def note(self, cells: Mapping[str, Any]) -> list[str]:
        """Cells for the row under way; returns the names that are no column."""
        known = {*self._wanted.columns, *(self._ranks.columns if self._ranks is not None else ())}
        self._notes.update(cells)
        return sorted(cells.keys() - known)

    def follow(self, parameters: Named) -> None:
        """Other parameters are trained from now on."""
        self._snapshots = SnapshotTaker(self._model, parameters, self._optimizers, self._ema)
        self.extras.follow(parameters)
        if self.shards is not None:
            self.shards.follow(parameters)

    def reducing(self) -> None:
        """This rank's own part of the step is done; it waits for the others."""
        if self._ranks is not None:
            self._ranks.reducing()

    def waiting(self) -> AbstractContextManager[None]:
        """It waits for the others in between: until the block that this opens ends."""
        return nullcontext() if self._ranks is None else self._ranks.waiting()

    def observe(self, step: int, grads: GradNorms, *, scaled: bool) -> None:
        """The gradients before the clip: snapshot them where the step is due, or bad."""
        if self._ranks is not None:
            self._ranks.reduced(grads)
        bad = self._bad_grads = bool(grads.nonfinite) or not math.isfinite(grads.total)
        try:
            if self.extras.due(step):
                self.extras.before_update()
        finally:  # an error here must not keep this rank from what all ranks do
            if self._due(step) or (bad and self._bad_in_a_row < MOST_BAD_SNAPSHOTS):
                self._take(step, grads, scaled)

    def write(
        self, log: StepLog | SkipLog, *, hold: bool = False, arrival: Sequence[str] = ()
    ) -> None:
        """The finished step: on disk before this returns, as far as the disk allows.

        Args:
            log: the step.
            hold: keep its row until ``complete`` tells the norm after the clip.
            arrival: the order in which gradients arrive, as far as it is known.
        """
        # A loss is this rank's alone: where all ranks take a snapshot, it must be no reason to.
        bad = log.bad if self.shards is None else self._bad_grads
        if bad and not self._taken and self._bad_in_a_row < MOST_BAD_SNAPSHOTS:
            self._take(log.step, None)
            if self._snapshot is not None and not log.skipped and self._bad_in_a_row == 0:
                self._snapshot.forget_bad_values()  # of this step's own update, perhaps
        self._bad_in_a_row = self._bad_in_a_row + 1 if bad else 0
        cells = self._extra_cells(log)
        row = {**log.row(), **cells, **self._notes, "time_s": time.perf_counter() - self._began}
        if hold:
            self._held = row
        else:
            self._files.write_row(row)
        if self._ranks is not None:
            self._ranks.write(row, arrival)
        self._files.write_snapshot(self._snapshot)
        if self._hooks is not None and self._hooks.armed:
            self._files.write_activations(log.step, *self._hooks.collect(log.scaler_scale))
        self._snapshot, self._notes, self._taken, self._bad_grads = None, {}, False, False
        self._arm(log.step + 1)

    def complete(self, post: float | None) -> None:
        """The row that was held, if any, with the norm after the clip."""
        if self._held is not None:
            row, self._held = self._held, None
            self._files.write_row({**row, "grad_l2_post_clip": post})

    @property
    def apart(self) -> str:
        """Why nothing that is spread over the ranks can be added up; empty where all is well."""
        return "" if self.shards is None else self.shards.apart

    @property
    def flat(self) -> bool:
        """Is it the first FSDP's, of whose tensors only norms can be recorded?"""
        return self.shards is not None and self.shards.flat is not None

    @property
    def checkpoint_every(self) -> int:
        """Steps between states; where all ranks save, rank 0's."""
        return 0 if self.flat else self._wanted.checkpoint_every

    @property
    def lacking(self) -> list[str]:
        """What cannot be recorded of a sharded model, a clause each; of the rank that tells."""
        if not (self._leads or self.apart == NO_LEADER):
            return []
        if self.apart:
            what = "gradient norms, snapshots and states"
            return [f"{what}: the parameters are sharded, and {self.apart}; {_WHAT_TO_DO}"]
        if self.flat:
            what = "snapshots and states"
            return [f"{what}: under {NAME} no tensor is whole; fully_shard is recorded as a whole"]
        sharded = self.shards is not None and "param_digest" in self._wanted.columns
        return ["param_digest: the parameters are sharded"] if sharded else []

    def measuring(self) -> None:
        """The gradients are about to be measured."""
        if self.shards is not None:
            self.shards.begin()

    def norm_without(self, optimizers: Optimizer | Sequence[Optimizer]) -> float:
        """The global norm of what optimizers hold, where measuring has failed on this rank."""
        if self.shards is None:
            return torchs_norm(optimizers)
        return self.shards.norm_without(optimizers)

    @property
    def measure(self) -> Callable[[Named, Sequence[Tensor]], GradNorms] | None:
        """Takes the gradients of a step where they are spread over ranks."""
        return None if self.shards is None else self.shards.grad_norms

    @property
    def closed(self) -> bool:
        """Have the files been closed?"""
        return self._files.closed

    def finish(self) -> None:
        """What is still in hand goes to the disk."""
        if self._hooks is not None:
            self._hooks.disarm()
        self._files.write_snapshot(self._snapshot)

    def close(self) -> None:
        """Close the run's files."""
        self._files.close()

    def leave(self, say: Callable[[str], None]) -> None:
        """Write nothing and wait for nobody any more: this process is a fork of the one that does.

        Nothing is closed: a file that is open here is the parent's, too.

        Args:
            say: told where the fork goes on training.
        """
        self._files, self.extras = ForkFiles(say), ExtraColumns((), ())
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None
        if self.shards is not None:
            self.shards.apart = "this is a fork of a rank"

    def ended(self, ended: Ended) -> None:
        """Say how this rank ended, before anything is waited for."""
        if self._ranks is not None:
            self._ranks.ended(ended)

    def close_rank(self, ended: Ended) -> None:
        """Say how this rank ended."""
        if self._ranks is not None:
            self._ranks.close(ended)

    def _take(self, step: int, grads: GradNorms | None, scaled: bool = False) -> None:
        """A snapshot of the step under way; a device too full for it costs the snapshot only."""
        if self.apart or self.flat or not (self._leads or self.shards is not None):
            return
        taken = None
        try:
            with self._guard.writing("params", torch.OutOfMemoryError):
                taken = self._snapshots.take(step, grads, scaled=scaled)
        finally:  # the other ranks wait for this one's part, whatever has become of it
            earlier = self._snapshot
            self._snapshot = taken if self.shards is None else self.shards.whole(taken)
            self._taken = taken is not None or self.shards is not None
        if earlier is not None and self._snapshot is not None:
            self._snapshot.begin_as(earlier)

    def _due(self, step: int) -> bool:
        every = self._wanted.snapshot_every
        takes_part = self._leads or self.shards is not None
        return takes_part and every > 0 and step % every == 0

    def _arm(self, step: int) -> None:
        if self._hooks is not None and self._due(step):
            self._hooks.arm(gradients=step == 0)

    def _extra_cells(self, log: StepLog | SkipLog) -> dict[str, Any]:
        if not self.extras.due(log.step):
            return {}
        if log.skipped and not self.extras.gathered:
            self.extras.before_update()  # nothing has changed: this still is the state before
        cells, updates = self.extras.after_update()
        if self._snapshot is not None:
            self._snapshot.add_updates(updates)
        return cells
