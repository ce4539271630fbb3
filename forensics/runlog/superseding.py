"""Resuming at a step: what is there from that step on is moved aside, never destroyed.

The move is a copy, a commit and a trim. All that is to go is first copied into a hidden folder,
which a rename then turns into ``superseded/K``: from there on nothing can be lost. Only then is
it cut from where it was. A kill before the rename leaves the run as it was; a kill after it
leaves a mark by which the next call finishes the trim first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forensics.runlog.activations import LAYOUT as ACTIVATION_LAYOUT
from forensics.runlog.atomic import replacing, sync_directory, sync_file
from forensics.runlog.checkpoint_files import checkpoints_in, health_path
from forensics.runlog.params import LAYOUT as PARAM_LAYOUT
from forensics.runlog.snapshot_split import copy_tail, store_has_tail, trim_tail

FOLDER = "superseded"
_MARK = "trim-from"
_STORES = (("params", PARAM_LAYOUT), ("activations", ACTIVATION_LAYOUT))
_ASIDE = ("bisect.json",)
"""Files about the old time line that the new one must not be told by."""


def supersede(run_dir: str | os.PathLike[str], from_step: int) -> Path | None:
    """Move rows and snapshots with step ≥ ``from_step`` to ``superseded/K/``.

    A torn last row goes too, and so do checkpoints of later steps (not the one of ``from_step``
    itself: that is where the run resumes), the last bisection, and a copy of ``run.json``. Call
    it with the run's lock held; after a kill at any moment call it again.

    Args:
        run_dir: the run directory.
        from_step: first step that will be done again.

    Returns:
        The folder it was moved to; None where there was nothing to move.

    Raises:
        OSError: something cannot be read or written; nothing is lost, and it can be repeated.
    """
    run = Path(run_dir)
    folder = run / FOLDER
    _finish_earlier(run, folder)
    if not _anything_from(run, from_step):
        return None
    folder.mkdir(exist_ok=True)
    number = 1 + max((int(p.name) for p in folder.iterdir() if p.name.isdecimal()), default=0)
    staging = folder / f".{number}.tmp"
    staging.mkdir()
    try:
        _copy(run, staging, from_step)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)  # on a full disk its room is needed
        raise
    grave = folder / str(number)
    os.rename(staging, grave)
    sync_directory(folder)
    _trim(run, grave, from_step)
    return grave


def _finish_earlier(run: Path, folder: Path) -> None:
    """Clear up after a call that was killed: a copy without commit, or an unfinished trim."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") and path.suffix == ".tmp":
            shutil.rmtree(path)
        elif (path / _MARK).exists():
            _trim(run, path, int((path / _MARK).read_text(encoding="ascii")))


def _logs(run: Path) -> list[Path]:
    """The row files of a run, relative to it."""
    ranks = sorted((run / "ranks").glob("rank-*.csv")) if (run / "ranks").is_dir() else []
    return [p.relative_to(run) for p in (run / "steps.csv", *ranks) if p.exists()]


def _anything_from(run: Path, step: int) -> bool:
    return (
        any(_has_tail(run / log, step) for log in _logs(run))
        or any(store_has_tail(run / name, step) for name, _ in _STORES)
        or any(True for _ in _later_checkpoints(run, step))
    )


def _copy(run: Path, staging: Path, step: int) -> None:
    """Copy all that is to go, and the mark that its trim is still to be done."""
    for log in _logs(run):
        if _has_tail(run / log, step):
            (staging / log).parent.mkdir(exist_ok=True)
            with (staging / log).open("wb") as file:
                file.writelines(_lines(run / log, step, tail=True))
            sync_file(staging / log)
    for name, layout in _STORES:
        copy_tail(run / name, staging / name, step, layout)
    if (run / "run.json").exists():
        shutil.copyfile(run / "run.json", staging / "run.json")
    (staging / _MARK).write_text(str(step), encoding="ascii")
    sync_file(staging / _MARK)
    sync_directory(staging)


def _trim(run: Path, grave: Path, step: int) -> None:
    """Cut what ``grave`` now holds from where it was; safe to repeat."""
    for log in _logs(run):
        if _has_tail(run / log, step):
            with replacing(run / log) as temporary, temporary.open("wb") as file:
                file.writelines(_lines(run / log, step, tail=False))
    for name, layout in _STORES:
        trim_tail(run / name, step, layout)
    for path in _later_checkpoints(run, step):
        (grave / "checkpoints").mkdir(exist_ok=True)
        os.replace(path, grave / "checkpoints" / path.name)
    for name in _ASIDE:
        if (run / name).exists():
            os.replace(run / name, grave / name)
    (grave / _MARK).unlink()
    sync_directory(grave)


def _later_checkpoints(run: Path, step: int) -> Iterator[Path]:
    """Checkpoints of later steps, each after its health file: a kill between leaves no orphan."""
    folder = run / "checkpoints"
    for info in checkpoints_in(folder) if folder.is_dir() else ():
        if info.step > step:
            if health_path(info.path).exists():
                yield health_path(info.path)
            yield info.path


# -- rows -------------------------------------------------------------------------------------


def _has_tail(path: Path, step: int) -> bool:
    """Has the file a row that is to go?"""
    rows = _lines(path, step, tail=True)
    next(rows, None)  # the header
    return next(rows, None) is not None


def _lines(path: Path, step: int, *, tail: bool) -> Iterator[bytes]:
    """The header, and the rows from ``step`` on (``tail``) or before it.

    A row whose step cannot be read goes with the row before it, a torn last row with the tail.
    """
    late = False
    with path.open("rb") as file:
        yield file.readline()
        for line in file:
            with suppress(ValueError):
                late = int(line.split(b",", 1)[0]) >= step
            torn = not line.endswith(b"\n")
            if (late or torn) == tail:
                yield line
