"""The folder of a capsule: made whole under another name, and never in place of something else."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from forensics.errors import InputError, OutputError
from forensics.replay.capsule.contents import read_facts
from forensics.runlog.atomic import sync_directory, sync_file

_PROBE = 1 << 16
"""Bytes that do not fit where torch's last write did not."""


@contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Lend a temporary folder beside ``target``; on success it gets the target's name.

    Raises:
        OutputError: the target holds something else, or the disk refuses.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        check_folder(target, overwrite=overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        sync_directory(temporary)
        _move(temporary, target)
    except OSError as error:
        raise OutputError(error.strerror or str(error), where=target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder(target: Path, *, overwrite: bool) -> None:
    """Nothing but a capsule is ever replaced, and that only where it is wanted.

    Raises:
        OutputError: the target is no folder, or holds something.
    """
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise OutputError("is no folder", where=target, hint="choose another --capsule")
    try:
        if not any(target.iterdir()):
            return
        read_facts(target)
    except OSError as error:
        raise OutputError(error.strerror or str(error), where=target) from error
    except InputError:
        raise OutputError(
            "holds other files", where=target, hint="choose a new or empty folder"
        ) from None
    if not overwrite:
        raise OutputError("holds a capsule", where=target, hint="--overwrite replaces it")


def save(value: Any, path: Path) -> None:
    """Save tensors and plain values, synced."""
    with path.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:  # what torch makes of a full disk
            file.write(bytes(_PROBE))  # which says so itself
            file.flush()
            raise OSError(errno.EIO, str(error).splitlines()[0]) from error
    sync_file(path)


def write(path: Path, text: str) -> None:
    """Write a text, synced."""
    path.write_text(text, encoding="utf-8")
    sync_file(path)


def copy(source: Path, target: Path) -> str:
    """Copy a file, synced; its SHA-256."""
    payload = source.read_bytes()
    target.write_bytes(payload)
    sync_file(target)
    return hashlib.sha256(payload).hexdigest()


def _move(temporary: Path, target: Path) -> None:
    """Give the folder its name; a capsule that is there goes only when the new one is in place."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except OSError:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    sync_directory(target.parent)
