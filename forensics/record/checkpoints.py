"""Checkpoints on disk: saved whole, judged, kept by policy, and never lost to a bad one."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forensics.errors import InputError
from forensics.record.disk_guard import DiskGuard
from forensics.record.health import HealthScan
from forensics.record.manifest_keeper import now
from forensics.record.options import KeepPolicy
from forensics.record.saved_file import load_saved
from forensics.runlog.checkpoint_files import (
    CheckpointInfo,
    checkpoint_name,
    checkpoints_in,
    health_path,
)
from forensics.runlog.files import atomic_write, replacing
from forensics.runlog.json_fields import plain_json

PIN_UNTIL_CLEAN = 1000
"""Clean steps after which trouble is over and the checkpoint before it may go."""

SKIPPING = 10
"""Skipped steps in a row before a save that make the state stale rather than healthy."""


class CheckpointStore:
    """The checkpoints of a run.

    A state with something non-finite in it goes to ``step-N.nonfinite.pt`` and replaces nothing.
    One saved while every step is skipped keeps its name but is not healthy. Each kind is rotated
    among its own, so bad ones never push healthy ones out.

    Args:
        directory: ``RUN/checkpoints``.
        scan: judges the states.
        guard: a save that fails is noted there.
        keep: which ones stay.
        announce: told the steps ``best`` and ``last_healthy`` after every save.
    """

    def __init__(
        self,
        directory: Path,
        scan: HealthScan,
        guard: DiskGuard,
        keep: KeepPolicy,
        announce: Callable[[dict[str, int | None]], None],
    ) -> None:
        self.directory, self.keep = directory, keep
        self._scan, self._guard, self._announce = scan, guard, announce
        self._known = {info.path: info for info in list_checkpoints(directory)}
        # Before the first step of the trouble, and before its latest flare-up.
        self._pinned: tuple[int | None, int | None] = (None, None)
        self._clean = PIN_UNTIL_CLEAN
        self._losses: list[float] = []
        self._since_save = 0
        self._skips_in_a_row = 0

    # -- every step -----------------------------------------------------------------------

    def observe(self, step: int, loss: float, *, skipped: bool, bad: bool) -> None:
        """Take a finished step in; where trouble begins, pin the newest checkpoint before it.

        Args:
            step: its index.
            loss: its loss.
            skipped: the optimizer did not step.
            bad: it was skipped, or something was not finite.
        """
        self._since_save += 1
        self._skips_in_a_row = self._skips_in_a_row + 1 if skipped else 0
        if math.isfinite(loss):
            self._losses.append(loss)
        if not bad:
            self._clean += 1
            if self._clean == PIN_UNTIL_CLEAN:
                self._pinned = (None, None)
            return
        if self._clean > 0:
            before = max((i.step for i in self._healthy() if i.step <= step), default=None)
            first = before if self._clean >= PIN_UNTIL_CLEAN else self._pinned[0]
            self._pinned = (first, before)
        self._clean = 0

    # -- every so many steps --------------------------------------------------------------

    def save(self, step: int, state: Mapping[str, Any], missing: Iterable[str] = ()) -> None:
        """Save the state before ``step``, write its health beside it, and rotate.

        Args:
            step: index of the step that would come next.
            state: as ``gather_state`` makes it.
            missing: what is not in it.
        """
        with self._guard.writing("checkpoints", RuntimeError):
            self.directory.mkdir(exist_ok=True)
            bad, extremes = self._scan.scan(state)
            health = self.health_of(step, [asdict(tensor) for tensor in bad], extremes, missing)
            path = self.directory / checkpoint_name(step, nonfinite=bool(bad))
            with replacing(path) as temporary:
                with temporary.open("wb") as file:
                    torch.save(dict(state), file)
                # Before the state gets its name, so that no state is ever without its health.
                text = json.dumps(plain_json(health), allow_nan=False, indent=1)
                atomic_write(health_path(path), text + "\n")
            self._losses, self._since_save = [], 0
            self.admit(path, health)

    def health_of(
        self,
        step: int,
        bad: Sequence[Mapping[str, Any]],
        extremes: Mapping[str, Any],
        missing: Iterable[str] = (),
    ) -> dict[str, Any]:
        """What lies beside the state before ``step``, by what is known of the steps before it.

        Args:
            step: index of the step that would come next.
            bad: the fields of each ``BadTensor`` of the state.
            extremes: per kind the finite tensor with the largest element.
            missing: what is not in it.
        """
        least = min(self._since_save or SKIPPING, SKIPPING)
        stale = not bad and 1 < self._skips_in_a_row >= least
        return {
            "step": step,
            "healthy": not bad and not stale,
            "finite": not bad,
            "reason": _reason(len(bad), self._skips_in_a_row if stale else 0),
            "bad": list(bad),
            "extremes": dict(extremes),
            "missing": list(missing),
            "mean_loss": _mean(self._losses),
            "saved": now(),
        }

    def judge(self, step: int, state: Mapping[str, Any], missing: Iterable[str]) -> dict[str, Any]:
        """The health of a state that somebody else writes; the steps before it are done with."""
        bad, extremes = self._scan.scan(state)
        health = self.health_of(step, [asdict(tensor) for tensor in bad], extremes, missing)
        self._losses, self._since_save = [], 0
        return health

    def admit(self, path: Path, health: dict[str, Any]) -> None:
        """A state is on the disk, whole, with its health beside it: older ones may go now."""
        self._known[path] = CheckpointInfo(health["step"], path, health["healthy"], health)
        self._rotate()
        self._announce({"best": self.best, "last_healthy": self.last_healthy})

    @property
    def last_healthy(self) -> int | None:
        """Step of the newest healthy checkpoint."""
        return max((info.step for info in self._healthy()), default=None)

    @property
    def best(self) -> int | None:
        """Step of the healthy checkpoint with the lowest mean loss since the one before it."""
        losses = {
            info.step: info.health["mean_loss"]
            for info in self._healthy()
            if isinstance(info.health.get("mean_loss"), int | float)
        }
        return min(losses, key=lambda step: losses[step], default=None)

    def judge_loaded(self, state: Mapping[str, Any]) -> None:
        """Show the scan the state that a resumed run begins with: it was finite here."""
        self._scan.scan(state)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on judging."""
        return {"pinned": list(self._pinned), "clean": self._clean, "skips": self._skips_in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        first, latest = state["pinned"]
        self._pinned, self._clean = (first, latest), state["clean"]
        self._skips_in_a_row = state["skips"]

    def _healthy(self) -> list[CheckpointInfo]:
        return [info for info in self._known.values() if info.healthy]

    def _rotate(self) -> None:
        """Delete what the policy does not keep; healthy and other ones each by their own count."""
        protected = {*self._pinned, self.best, self.last_healthy}
        for healthy in (True, False):
            ours = [i for i in self._known.values() if bool(i.healthy) is healthy]
            ours.sort(key=lambda info: info.step)
            for info in ours[: -self.keep.last]:
                lasting = self.keep.every > 0 and info.step % self.keep.every == 0
                if not lasting and (not healthy or info.step not in protected):
                    self._delete(info.path)

    def _delete(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        health_path(path).unlink(missing_ok=True)
        del self._known[path]


def list_checkpoints(directory: Path) -> tuple[CheckpointInfo, ...]:
    """The checkpoints of a directory, ascending; none where there is no directory."""
    return checkpoints_in(directory) if directory.is_dir() else ()


def load_checkpoint(
    path: Path, parameters: Mapping[str, Tensor] | None = None, *, rank: int = 0
) -> dict[str, Any]:
    """A saved state, on the CPU; nothing in it can run code.

    Args:
        path: its file, or the folder of several ranks.
        parameters: of the model here, by name: a folder's tensors are spread as they are. Without
            them every tensor is whole.
        rank: whose own parts are taken from a folder.

    Raises:
        InputError: it cannot be read, or holds more than tensors and plain values.
    """
    if path.is_dir():
        from forensics.record.ranks.sharded_state import unpacked

        return unpacked(path, parameters, rank=rank)
    try:
        state = load_saved(path)
    except InputError as error:
        raise InputError(f"is no readable checkpoint (it {error.what})", where=path) from error
    except Exception as error:
        reason = why_unreadable(error)
        raise InputError(f"is no readable checkpoint ({reason})", where=path) from error
    if not isinstance(state, dict):
        raise InputError("is no checkpoint of a training", where=path)
    return state


def why_unreadable(error: Exception) -> str:
    """What ``torch.load`` came upon, in a clause; its own text advises to load unsafely."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain values, and nothing of it was run"
    lines = str(error).splitlines()
    return lines[0][:160] if lines else type(error).__name__


def _reason(bad: int, skips: int) -> str:
    if bad:
        return f"{bad} {'tensor is' if bad == 1 else 'tensors are'} not finite"
    return f"the last {skips} steps were all skipped" if skips else ""


def _mean(losses: list[float]) -> float | None:
    return sum(losses) / len(losses) if losses else None
