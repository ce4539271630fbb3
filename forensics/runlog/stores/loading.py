"""Runs read from URIs, by whatever reads them from paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from forensics.errors import ForensicsError
from forensics.runlog.stores.mirror import Mirror, mirror_of
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    from forensics.runlog.run import Run


def from_elsewhere(
    paths: Sequence[str | os.PathLike[str]], load: Callable[[list[Path]], Run]
) -> Run:
    """Load from what stands here for some URIs; other paths are taken as they are.

    Raises:
        ForensicsError: as ``load`` and ``mirror_of``, of the place itself.
    """
    places, mirrors = _places_of(paths)
    try:
        return replace(load(places), elsewhere=mirrors)
    except ForensicsError as error:
        told = error
        for mirror in mirrors:
            told = mirror.told(told)
        raise told from error.__cause__


def _places_of(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Path], tuple[Mirror, ...]]:
    """What stands here for each path, and the mirrors by which it does."""
    places, mirrors = [], []
    for path in paths:
        text = os.fspath(path)
        if not is_uri(text):
            places.append(Path(text))
        elif text.lower().startswith("file:"):
            places.append(Path(url2pathname(urlsplit(text).path)))
        else:
            mirrors.append(mirror_of(text))
            places.append(mirrors[-1].path)
    return places, tuple(mirrors)
