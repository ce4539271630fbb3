"""Checkpoints of a training whose tensors are spread over ranks: saved by all, while it goes on.

Every rank copies what it holds and hands it to a thread, which writes it through
torch.distributed.checkpoint into a hidden folder. Only when all ranks are done rank 0 gives the
folder its name and its health; only then an older state may go. What is killed on the way leaves a
hidden folder, which the next recorder clears away.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch import distributed as dist

from forensics.record.health import SCANNED, leaves_of
from forensics.record.local_part import counts_here
from forensics.record.own_checkpoints import OwnCheckpoints
from forensics.record.plain_names import named_parameters
from forensics.record.ranks.sharded_state import packed, rank_key
from forensics.record.ranks.shards import Shards
from forensics.record.ranks.world import World
from forensics.record.recipe import Training
from forensics.record.training_state import gather_state
from forensics.runlog.atomic import atomic_write, sync_directory
from forensics.runlog.checkpoint_files import checkpoint_name, health_path
from forensics.runlog.json_fields import plain_json

PATIENCE_S = 600.0
"""Seconds that a rank waits for the others to write theirs."""
LAST_WAIT_S = 30.0
"""The same, where the training has ended otherwise than well."""


def checkpoints_of(
    world: World, shards: Shards | None, *arguments: Any, every: int, **options: Any
) -> OwnCheckpoints:
    """What keeps the checkpoints of a loop: rank 0 alone, or all ranks of a sharded model.

    Args:
        world: this rank among all.
        shards: of a sharded model.
        every: steps between states.
        *arguments: as ``OwnCheckpoints`` takes them.
        **options: likewise.
    """
    if shards is None:
        return OwnCheckpoints(*arguments, every=every if world.leads else 0, **options)
    return ShardedCheckpoints(world, *arguments, every=0 if shards.apart else every, **options)


@dataclass
class _Pending:
    """A state that is being written."""

    step: int
    folder: Path
    health: dict[str, Any]
    written: Future[Any]


class ShardedCheckpoints(OwnCheckpoints):
    """Saves the state of a sharded loop every so many steps; every rank calls all of it alike.

    Args:
        world: this rank among all.
        arguments, options: as ``OwnCheckpoints`` takes them.
    """

    def __init__(self, world: World, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._world = world
        self._pending: _Pending | None = None
        if self._every:
            if world.leads:
                _clear_away(self._folder)
            # Its own group: what the thread sends must not come between the training's.
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))

    def after(self, step: int, log: Any) -> None:
        """As ``OwnCheckpoints``; and a state that has been written meanwhile gets its name."""
        if self._pending is not None and self._pending.written.done():
            self._finish()
        super().after(step, log)

    def end(self, step: int, *, finished: bool) -> None:
        """As ``OwnCheckpoints``, and see it written; after a failure without much patience."""
        super().end(step, finished=finished)
        self._finish(None if finished else LAST_WAIT_S)

    def leave(self) -> None:
        """As ``OwnCheckpoints``; the thread that is writing is the parent's."""
        super().leave()
        self._pending = None

    def save(self, step: int) -> None:
        """Begin to save the state before ``step``, once the one before is written."""
        self._finish()
        if not self._every:
            return
        self._saved = step
        every, self._every = self._every, 0
        state, missing = gather_state(self._training, step, {"checkpoints": self._store})
        health = self._store.judge(step, state, missing)
        if health["bad"]:
            _mark_counting(health["bad"], state)
        folder = self._folder / f".{checkpoint_name(step).removesuffix('.pt')}.tmp"
        with self._guard.writing("checkpoints"):  # an error must not keep this rank from the rest
            folder.mkdir(parents=True, exist_ok=True)
            own = folder / f"{rank_key(self._world.rank)}.health.json"
            own.write_text(json.dumps(plain_json(health), allow_nan=False), encoding="ascii")
        given = packed(state, _names(self._model, self._training), rank=self._world.rank)
        self._pending = _Pending(step, folder, health, self._written(given, folder))
        # Where something above raised, this rank saves no more: it is a state behind the others,
        # and the next ones would be made of parts of two steps.
        self._every = every

    def _written(self, given: Mapping[str, Any], folder: Path) -> Future[Any]:
        """Copies what this rank gives, and writes it in a thread."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations within torch
            written = async_save(
                {name: _copied(value) for name, value in given.items()},
                storage_writer=FileSystemWriter(folder),
                process_group=self._group,
            )
        assert isinstance(written, Future)
        return written

    def _finish(self, patience_s: float | None = None) -> None:
        """See the state under way written; rank 0 gives it its name."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with self._guard.writing("checkpoints", RuntimeError, ValueError):
            error = pending.written.exception(patience_s)
            if error is not None:
                self._lose(pending, error)
            elif self._world.leads:
                self._admit(pending)

    def _lose(self, pending: _Pending, error: BaseException) -> None:
        """A state that could not be written; where the ranks have lost each other, the last."""
        from torch.distributed.checkpoint.api import CheckpointException

        if not isinstance(error, CheckpointException):  # that is a disk's, and told to all ranks
            self._every = 0
        if self._world.leads:
            shutil.rmtree(pending.folder, ignore_errors=True)
        raise RuntimeError(str(error).strip().splitlines()[-1][:200]) from error

    def _admit(self, pending: _Pending) -> None:
        health = {**pending.health, **_joined(pending.folder, self._world.size)}
        if health["bad"]:
            count = len(health["bad"])
            reason = f"{count} {'tensor is' if count == 1 else 'tensors are'} not finite"
            health |= {"healthy": False, "finite": False, "reason": reason}
        name = checkpoint_name(pending.step, nonfinite=bool(health["bad"]))
        path = pending.folder.with_name(name.removesuffix(".pt"))
        text = json.dumps(plain_json(health), allow_nan=False, indent=1)
        atomic_write(health_path(path), text + "\n")  # so that no state is ever without its health
        before = path.with_name(f".{path.name}.before.tmp")
        if path.exists():  # of an earlier part of the run, at this very step
            os.replace(path, before)
        os.replace(pending.folder, path)
        sync_directory(path.parent)
        shutil.rmtree(before, ignore_errors=True)
        self._store.admit(path, health)


def _joined(folder: Path, ranks: int) -> dict[str, Any]:
    """What all ranks have found bad or large in the parts that they hold.

    Raises:
        RuntimeError: a rank's word is missing, so that nobody knows whether the state is healthy.
    """
    bad: dict[str, list[dict[str, Any]]] = {}
    extremes: dict[str, dict[str, Any]] = {}
    missing: dict[str, None] = {}
    files = sorted(folder.glob("rank-*.health.json"))
    if len(files) != ranks:
        raise RuntimeError(f"{len(files)} of {ranks} ranks wrote here: is the folder shared?")
    for file in files:
        health = json.loads(file.read_text(encoding="ascii"))
        missing |= dict.fromkeys(health["missing"])
        for found in health["bad"]:
            bad.setdefault(found["name"], []).append(found)
        for kind, largest in health["extremes"].items():
            if kind not in extremes or largest["absmax"] > extremes[kind]["absmax"]:
                extremes[kind] = largest
    whole = [_added_up(parts) for parts in bad.values()]
    return {"bad": whole, "extremes": extremes, "missing": list(missing)}


def _added_up(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A bad tensor from its parts on the ranks; of replicas one, unless only another is bad."""
    counted = [part for part in parts if part.get("counts", True)] or parts[:1]
    sums = {count: sum(part[count] for part in counted) for count in ("nan", "inf")}
    return {k: v for k, v in {**counted[0], **sums}.items() if k != "counts"}


def _mark_counting(bad: list[dict[str, Any]], state: Mapping[str, Any]) -> None:
    """Say of what is bad here whether it goes into a sum over all ranks."""
    parts = [part for part in SCANNED if part in state]
    of = {name: leaf for part in parts for name, leaf in leaves_of(part, state[part])}
    for found in bad:
        leaf = of[found["name"]]
        found["counts"] = not isinstance(leaf, Tensor) or counts_here(leaf)


def _copied(value: Any) -> Any:
    """The training goes on while it is written: torch copies what is not on the CPU by itself."""
    if isinstance(value, Tensor) and value.device.type == "cpu":
        return value.detach().clone()
    return value


def _names(model: nn.Module, training: Training) -> list[list[str]]:
    """Of each optimizer the names of its parameters, in order."""
    owners = {id(p): name for name, p in named_parameters(model)}
    members = [[p for g in o.param_groups for p in g["params"]] for o in training.optimizers]
    return [
        [owners.get(id(p), f"optimizers.{i}.{j}") for j, p in enumerate(held)]
        for i, held in enumerate(members)
    ]


def _clear_away(folder: Path) -> None:
    """What a killed recorder was writing."""
    for path in folder.glob(".step-*.tmp") if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)
