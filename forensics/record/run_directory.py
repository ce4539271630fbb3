"""The run directory before the first step: refused, begun anew, or found to be resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import InputError, UsageError
from forensics.record.checkpoints import list_checkpoints, load_checkpoint
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.runlog.files import RunLock
from forensics.runlog.json_fields import plain_json
from forensics.runlog.manifest import MANIFEST_NAME, Manifest, read_manifest

_FILES = ("steps.csv", MANIFEST_NAME, "bisect.json")
_FOLDERS = ("params", "activations", "checkpoints", "ranks", "superseded")


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on.

    Attributes:
        manifest: as the run left it.
        step: the next step.
        state: loaded from the newest finite checkpoint; None where there is none, and the run
            begins again at step 0.
        path: the checkpoint.
    """

    manifest: Manifest
    step: int
    state: Mapping[str, Any] | None
    path: Path | None

    def random_state(self, *, leads: bool) -> Any:
        """That of this rank, if it is there: a file has rank 0's, a folder that of each."""
        own = leads or (self.path is not None and self.path.is_dir())
        return self.state["rng"] if own and self.state is not None else None


@contextmanager
def locked_directory(
    options: RecordOptions, say: Callable[[str], None] | None = None
) -> Iterator[RunLock]:
    """Make the directory and hold its lock.

    Raises:
        UsageError: it is in use, or holds a run and neither resume nor overwrite is asked for.
        InputError: it cannot be made or written.
    """
    out = options.out
    if holds_run(out) and not (options.resume or options.overwrite):
        raise UsageError(
            "holds a run already",
            where=out,
            hint="--resume continues it, --overwrite removes it, or choose another --out",
        )
    lock = RunLock(out, takeover=options.resume or options.overwrite, say=say)
    with changing(out):
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


@contextmanager
def changing(out: Path) -> Iterator[None]:
    """What must be done on the disk before the first step; a disk that refuses is an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            where=out,
            hint="nothing in it is lost; make room or allow it, or choose another --out",
        ) from error


def holds_run(directory: Path) -> bool:
    """Is there a run, or what a killed one left?"""
    return any((directory / name).exists() for name in _FILES[:2])


def clear_run(directory: Path) -> None:
    """Remove a run's own files and nothing else."""
    for name in _FOLDERS:
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)
    for name in _FILES:
        (directory / name).unlink(missing_ok=True)


def find_resume_point(
    options: RecordOptions, recipe_name: str, config: Config, say: Callable[[str], None]
) -> ResumePoint | None:
    """Where the run in ``options.out`` goes on; None where there is none.

    Raises:
        UsageError: it was recorded from another recipe or config.
        InputError: its manifest cannot be read.
    """
    out = options.out
    if not holds_run(out):
        say(f"{out}: no run to resume: beginning at step 0")
        return None
    if not (out / MANIFEST_NAME).exists():
        raise UsageError(
            f"has no {MANIFEST_NAME}, so nothing tells how it was recorded",
            where=out,
            hint="--overwrite removes it and begins anew, or choose another --out",
        )
    manifest = read_manifest(out)
    _check_same(manifest, recipe_name, config, out)
    return newest_point(out, manifest, say)


def newest_point(
    out: Path,
    manifest: Manifest,
    say: Callable[[str], None],
    load: Callable[[Path], Mapping[str, Any]] = load_checkpoint,
) -> ResumePoint:
    """The newest finite state of a run that can be read; without one it begins again at step 0.

    Args:
        out: the run directory.
        manifest: as the run left it.
        say: told of states that cannot be read.
        load: reads a state.
    """
    # A name without "nonfinite" means that the state is finite.
    found = list_checkpoints(out / "checkpoints")
    usable = [info for info in found if not info.set_aside]
    for info in reversed(usable):
        try:
            state = load(info.path)
        except InputError as error:
            say(f"{error.line()}: trying the one before it")
            continue
        return ResumePoint(manifest, info.step, state, info.path)
    say(f"{out}: no checkpoint to resume from: beginning again at step 0")
    return ResumePoint(manifest, 0, None, None)


def check_columns(point: ResumePoint, columns: tuple[str, ...], where: Path) -> None:
    """The step log cannot change its columns midway; UsageError where they differ."""
    recorded = point.manifest.columns
    if recorded and recorded != columns:
        odd = [name for name in (*recorded, *columns) if (name in recorded) != (name in columns)]
        raise UsageError(
            f"was recorded with other columns ({', '.join(odd) or 'in another order'})",
            where=where,
            hint="resume with the same extras, or record into another directory",
        )


def _check_same(manifest: Manifest, recipe_name: str, config: Config, where: Path) -> None:
    recorded = manifest.recipe.get("name")
    if recorded not in (None, recipe_name):
        raise UsageError(
            f"is a run of {recorded}, not of {recipe_name}",
            where=where,
            hint="choose another --out",
        )
    now = _flat(plain_json(config.to_dict()))
    before = _flat(plain_json(manifest.recipe.get("config", {})))
    changed = [key for key in now if key in before and before[key] != now[key]]
    if changed == ["steps"] and now["steps"] >= before["steps"] and _endless(config):
        return
    if changed:
        key = changed[0]
        raise UsageError(
            f"was recorded with {key} = {before[key]}, not {now[key]}",
            where=where,
            hint="resume with the same config, or record into another directory",
        )


def _endless(config: Config) -> bool:
    """Does the schedule not depend on the number of steps, so that a run may be prolonged?"""
    return config.schedule.name == "constant"


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
