"""A recording on a disk that is too small: a child's own mount, which ends with the child."""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from forensics.cli import main
from tests.fire.training import record

PAGE = 4096
"""Bytes: the unit in which a file system in memory gives room."""

_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS, sched.h
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC, sys/mount.h
_REMOUNT = 32  # MS_REMOUNT
_READ_ONLY = 1  # MS_RDONLY


def mount_small(place: Path, size: int, flags: int = 0) -> None:
    """Mount a file system of ``size`` bytes in memory, seen by this process alone.

    Raises:
        OSError: the system does not let us.
    """
    if not flags:
        _call("unshare", _NEW_NAMESPACE)
        _call("mount", None, b"/", None, _PRIVATE, None)
    option = f"size={size}".encode()
    _call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", flags, option)


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def can_mount(place: str) -> int:
    """0 where this machine lets us (root, or a namespace of one's own): for a child to find out."""
    try:
        mount_small(Path(place), 1 << 16)
    except OSError:
        return 1
    return 0


def record_starved(out: str, part: str, size: int, told: dict[str, Any], kept: str) -> int:
    """Record with little room, resume without more, then with; copy what each has left.

    Args:
        out: the run directory; it is made.
        part: what lies on the small disk: a folder of the run, or ``.`` for all of it.
        size: its bytes.
        told: options of the recording.
        kept: where ``starved``, ``again`` and ``resumed`` are copied to.

    Returns:
        The exit code of the first recording, or of the last: what lies between may be refused.
    """
    place = Path(out) / part
    place.mkdir(parents=True)
    mount_small(place, size)
    code = record(out, told)
    shutil.copytree(out, Path(kept) / "starved")
    if code:
        return code
    again = record(out, {**told, "resume": True})
    shutil.copytree(out, Path(kept) / "again")
    if again not in (0, 2):
        return again
    mount_small(place, 64 << 20, _REMOUNT)
    code = record(out, {**told, "resume": True})
    shutil.copytree(out, Path(kept) / "resumed")
    return code


def write_starved(run: str, place: str) -> int:
    """Let every verb write a document to a full disk where an older one lies.

    ``place`` + ``.json`` then tells per verb its exit code, what it said, and what files are left.
    """
    checkpoint = str(next(Path(run, "checkpoints").glob("*.pt")))
    verbs = {
        "report": ["report", run],
        "report page": ["report", run, "--format", "html"],
        "params": ["params", run],
        "compare": ["compare", run, run],
        "scan": ["scan", run],
        "inspect": ["inspect", checkpoint],
        "convert": ["convert", f"{run}/steps.csv"],
        "plot": ["plot", run],
        "plot-scale": ["plot-scale", run],
        "plot-params": ["plot-params", run],
    }
    folder = Path(place)
    folder.mkdir()
    mount_small(folder, 16 * PAGE)
    found = {}
    for verb, arguments in verbs.items():
        target = folder / ("document.svg" if verb.startswith("plot") else "document")
        target.write_text("old")
        _fill(folder / "filler")
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = main([*arguments, "--out", str(target)])
        (folder / "filler").unlink()
        left = {path.stem: path.read_text(errors="replace")[:9] for path in folder.iterdir()}
        target.unlink()
        found[verb] = (code, said.getvalue(), left)
    folder.with_suffix(".json").write_text(json.dumps(found))
    return 0


def _fill(path: Path) -> None:
    """Write until nothing fits."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(PAGE))


def make_read_only(place: Path) -> None:
    """Let nobody write below a folder that ``mount_small`` has mounted."""
    _call("mount", None, os.fsencode(place), None, _REMOUNT | _READ_ONLY, None)


def use_read_only(run: str, place: str) -> int:
    """Let every verb work on a run that nobody can write; ``place`` + ``.json`` tells how it went.

    Per case: the exit code, and what it said on standard error.
    """
    folder = Path(place)
    (folder / "free").mkdir(parents=True)
    mount_small(folder, 64 << 20)
    shutil.copytree(run, folder / "run")
    make_read_only(folder)
    there = str(folder / "run")
    new = {"steps": 8}
    cases: dict[str, Callable[[], int]] = {
        "report": lambda: main(["report", there]),
        "params": lambda: main(["params", there]),
        "inspect": lambda: main(["inspect", f"{there}/checkpoints"]),
        "compare": lambda: main(["compare", there, there]),
        "scan": lambda: main(["scan", there]),
        "bisect": lambda: main(["bisect", "--ckpt-dir", f"{there}/checkpoints"]),
        "plot beside it": lambda: main(["plot", there]),
        "report into it": lambda: main(["report", there, "--out", f"{there}/report.md"]),
        "convert into it": lambda: main(["convert", there, "--out", f"{there}/x.csv"]),
        "record into it": lambda: record(str(folder / "new"), new),
        "resume it": lambda: record(there, {"resume": True}),
        "overwrite it": lambda: record(there, {"overwrite": True}),
    }
    found = {}
    for name, case in cases.items():
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            found[name] = (case(), said.getvalue())
    folder.with_suffix(".json").write_text(json.dumps(found))
    return 0


def record_beside_read_only(out: str, parts: list[str], steps: int) -> int:
    """Record a run of which some folders cannot be written; it is copied to ``out`` + ``.kept``."""
    for part in parts:
        (Path(out) / part).mkdir(parents=True)
        mount_small(Path(out) / part, PAGE)
        make_read_only(Path(out) / part)
    code = record(out, {"steps": steps})
    shutil.copytree(out, f"{out}.kept")
    return code
