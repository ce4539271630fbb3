"""What the user may have meant by a path that is not there, or is no run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from forensics.errors import InputError

_ALIKE = 0.7
"""Share of characters in common from which a name may be a misspelling of another."""
_MOST_LISTED = 10_000
"""Names of a directory that are looked through."""
_SHOWN = 3
_ONE_SLASH = r"(?i)(s3[an]?|gcs?|gs|https?|abfss?|hdfs|sftp|memory):/(?=[^/])"
"""What pathlib, and whoever joins paths, makes of ``s3://``."""


def no_such(source: Path) -> InputError:
    """The error for a path that is not there, with the one that is spelled like it."""
    if (start := re.match(_ONE_SLASH, str(source))) is not None:
        hint = f"did you mean {start[1]}://{str(source)[start.end() :]}?"
        return InputError("no such file or directory", where=source, hint=hint)
    meant = _spelled_like(source)
    return InputError(
        "no such file or directory",
        where=source,
        hint=f"did you mean {shlex.quote(str(meant))}?" if meant is not None else None,
    )


def _spelled_like(source: Path) -> Path | None:
    """The path that is there, each part of it as given or spelled alike."""
    from difflib import get_close_matches

    there = Path(source.anchor)
    for part in source.parts[1 if source.anchor else 0 :]:
        if os.path.exists(there / part):
            there /= part
            continue
        try:
            with os.scandir(there) as entries:
                names = [entry.name for entry in islice(entries, _MOST_LISTED)]
        except OSError:
            return None
        close = get_close_matches(part, names, n=1, cutoff=_ALIKE)
        if not close:
            return None
        there /= close[0]
    return there


def in_directory(
    directory: Path, is_run: Callable[[Path], bool], is_state: Callable[[Path], bool]
) -> str:
    """What may have been meant by a directory that is no run.

    Args:
        directory: it is there.
        is_run: is a directory in it a run?
        is_state: is a file in it a saved state?
    """
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        return f"the directory cannot be listed ({error.strerror})"
    place = shlex.quote(str(directory))
    runs = [entry.name for entry in entries if entry.is_dir() and is_run(entry)]
    logs = [entry.name for entry in entries if entry.suffix == ".csv" and entry.is_file()]
    states = [entry for entry in entries if entry.is_file() and is_state(entry)]
    if runs:
        return f"name one of the runs in it: {_some(runs)}; `forensics scan {place}` judges all"
    if logs:
        return f"name the log itself: {_some(logs)}"
    if states and (directory / "capsule.json").is_file():
        return f"it is a capsule: `forensics capsule run {place}`"
    if states:
        return f"it holds saved states: `forensics inspect {place}`"
    return (
        f"a run directory has steps.csv and run.json; `forensics scan {place}` looks for runs "
        "below it"
    )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{' …' * (len(names) > _SHOWN)}"
