"""Runs read from URIs, by whatever reads them from paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from forensics.errors import ForensicsError, InputError
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.stores.mirror import Mirror
from forensics.runlog.stores.mirroring import mirror_of
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    from forensics.runlog.run import Run
    from forensics.runlog.stores.web import Progress


def from_elsewhere(
    paths: Sequence[str | os.PathLike[str]],
    load: Callable[[list[Path]], Run],
    progress: Progress | None = None,
) -> Run:
    """Load from what stands here for some URIs; other paths are taken as they are.

    Args:
        paths: the URIs and paths.
        load: loads a run from paths.
        progress: told the bytes read so far, and of how many, of files that are fetched whole.

    Raises:
        ForensicsError: as ``load`` and ``mirror_of``, of the place itself.
    """
    places, mirrors = _places_of(paths, progress)
    try:
        return _noted(replace(load(places), elsewhere=mirrors))
    except ForensicsError as error:
        told = error
        for mirror in mirrors:
            told = mirror.told(told)
        raise told from error.__cause__


def _noted(run: Run) -> Run:
    """The run with what its mirrors say of it among what was learned of its log."""
    notes = tuple(note for mirror in run.elsewhere for note in mirror.notes)
    if not notes:
        return run
    facts = run.steps.facts or LogFacts()
    facts = replace(facts, notes=(*facts.notes, *notes))
    return replace(run, steps=replace(run.steps, facts=facts))


def _places_of(
    paths: Sequence[str | os.PathLike[str]], progress: Progress | None
) -> tuple[list[Path], tuple[Mirror, ...]]:
    """What stands here for each path, and the mirrors by which it does."""
    places, mirrors = [], []
    for path in paths:
        text = os.fspath(path)
        if not is_uri(text):
            places.append(Path(text))
        elif text.lower().startswith("file:"):
            places.append(_path_of(text))
        else:
            mirrors.append(mirror_of(text, progress))
            places.append(mirrors[-1].path)
    return places, tuple(mirrors)


def _path_of(text: str) -> Path:
    """The path of this machine that a ``file://`` URI names.

    Raises:
        InputError: it names one of another machine.
    """
    split = urlsplit(text)
    if split.netloc not in ("", "localhost"):
        hint = f"a path begins with a third slash: file:///path, or just {split.netloc}{split.path}"
        raise InputError(f"names the machine {split.netloc!r}", where=text, hint=hint)
    return Path(url2pathname(split.path))
