"""Logs of other programs among many files: by their names, and a glance at the first part."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from forensics.errors import ForensicsError, InputError
from forensics.frozen import dataclass
from forensics.runlog.csv_reader.spans import size_of
from forensics.runlog.directory_logs import (
    CHECKPOINT,
    CHECKPOINTED,
    ROTATION,
    SURE,
    VALIDATION,
    Chosen,
    LogFile,
    SeveralRunsError,
    is_log_name,
    natural,
    one_run,
    read_chosen,
)
from forensics.runlog.importers.detect import Choice, detect
from forensics.runlog.manifest import MANIFEST_NAME, read_manifest
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import HEAD, Head
from forensics.runlog.scanner.metric_files import main_file
from forensics.runlog.scanner.source import head_of

_GLANCE = 64 << 10
"""Bytes by which most files are told to be a log, or none."""
_MOST_READ = 8 << 20
"""Bytes of logs of one folder that are read to see whether they tell of one run."""
_TELLING = re.compile(
    rb"(?i)loss|norm|overflow|learning.?rate|\blr\b|scale|brain\.Event|Wall time"
    rb"|\A\s*\[\s*\[\s*1\d{9}|\A1\d{12} \S+ \d+\n| : Up\. \d|avg, [\d.]+ rate"
)
"""What every log of a training has one of."""
_STATE = "trainer_state.json"
_CLOSED = frozenset(("__pycache__", "node_modules", "site-packages"))
_OF_THE_TRAINER = {
    "runs": re.compile(r"events\.out\.tfevents\."),
    "wandb": re.compile(r"(offline-)?run-|latest-run|debug|settings"),
}
"""Folders in which the Trainer keeps further views of the run whose log lies beside them, and what
their contents are called. Where anything else is in one, it is somebody's folder of runs."""
_TRAINING = frozenset(("train", "training"))


@dataclass(frozen=True)
class Found:
    """What one folder holds.

    Attributes:
        places: paths that ``load_run`` takes, a run each.
        passed: files that are called like logs and are none.
        below: names of the folders in it in which more runs may be.
    """

    places: tuple[Path, ...]
    passed: tuple[Path, ...]
    below: tuple[str, ...]


def search_folder(folder: Path, files: Sequence[str], folders: Sequence[str]) -> Found:
    """The logs in one folder; what tells of one run is one place.

    Args:
        folder: where to look.
        files: names of the files in it.
        folders: names of the folders in it.
    """
    if main_file(folder) is not None:
        return Found((folder,), (), ())
    logs: list[LogFile] = []
    passed: list[Path] = []
    named = [folder / name for name in files if is_log_name(name)]
    for path in sorted(filter(Path.is_file, named), key=natural):  # no pipe, no device
        choice = glance(path)
        if choice is None:
            passed.append(path)
        else:
            logs.append(LogFile(path, choice.importer.name, choice.match.confidence))
    checkpoints = [n for n in folders if CHECKPOINT.match(n) and (folder / n / _STATE).is_file()]
    if checkpoints:
        last = max((folder / name for name in checkpoints), key=natural) / _STATE
        if glance(last) is not None:
            logs.append(LogFile(last, CHECKPOINTED, 1.0))
    below = [
        n for n in folders if n not in checkpoints and not _is_closed(folder / n, folders, logs)
    ]
    if checkpoints and _is_recorded(folder, below):
        logs = [log for log in logs if not _is_of_the_trainer(log)]
    return Found(tuple(_places(folder, logs)), tuple(passed), tuple(sorted(below)))


def _is_recorded(folder: Path, folders: Sequence[str]) -> bool:
    """Lies the run directory of this very training in the Trainer's folder?

    Its callback has noted in ``run.json`` where the Trainer saved its checkpoints.
    """
    for name in folders:
        run = folder / name
        if not (run / MANIFEST_NAME).is_file():
            continue
        try:
            states = read_manifest(run).states
        except InputError:
            continue
        if any(os.path.normpath(run / state.path / "..") == str(folder) for state in states):
            return True
    return False


def _is_of_the_trainer(log: LogFile) -> bool:
    return log.format == CHECKPOINTED or log.format.startswith("hf-")


def _is_closed(folder: Path, beside: Sequence[str], logs: Sequence[LogFile]) -> bool:
    """Can nothing be in a folder that is a run of its own?"""
    name = folder.name
    if name.startswith(".") or name in _CLOSED:
        return True
    if name in VALIDATION and not _TRAINING.isdisjoint(beside):
        return True
    if name not in _OF_THE_TRAINER or not any(log.format.startswith("hf-") for log in logs):
        return False
    return _holds_only(folder, _OF_THE_TRAINER[name])


def _holds_only(folder: Path, names: re.Pattern[str]) -> bool:
    """Is everything in a folder, or in the folders in it, called so?"""
    try:
        inside = list(folder.iterdir())
        for path in inside:
            below = list(path.iterdir()) if path.is_dir() and not names.match(path.name) else [path]
            if not all(names.match(entry.name) for entry in below):
                return False
    except OSError:
        return False  # whoever looks into it says why it cannot be read
    return True


def _places(folder: Path, logs: Sequence[LogFile]) -> list[Path]:
    """The folder where its logs are one run, else each log."""
    paths = [log.path for log in logs]
    if len(logs) < 2:
        return paths
    try:
        chosen = one_run(folder, logs)
    except InputError:
        return paths
    views = len({log.format for log in logs}) > 1 or logs[0].format in ("tensorboard", CHECKPOINTED)
    one = views or _is_rotation(chosen.files)
    return [folder] if one and _tells_of_one(folder, chosen) else paths


def _tells_of_one(folder: Path, chosen: Chosen) -> bool:
    """Do the values of logs bear out what their names say? Large ones are not read twice."""
    files = {*chosen.files, *(path for view in chosen.views for path in view)}
    if len(files) < 2 or sum(map(size_of, files)) > _MOST_READ:
        return True
    try:
        read_chosen(folder, chosen, Reading())
    except SeveralRunsError:
        return False
    except (ForensicsError, OSError):
        return True  # whoever reads the folder says why it cannot be read
    return True


def _is_rotation(files: Sequence[Path]) -> bool:
    """Is one of them called as all are without their number? ``job1`` and ``job2`` are two runs."""
    return any(ROTATION.sub("", path.name) == path.name for path in files)


def glance(path: Path) -> Choice | None:
    """What a file is a log of, by its first part; None where it is none or cannot be read."""
    try:
        head = head_of(path, _GLANCE)
        if _TELLING.search(head.raw) is None:
            return None
        choice = _sure(head)
        if choice is None and not head.complete:
            choice = _sure(head_of(path, HEAD))
        return choice
    except (InputError, OSError):
        return None


def _sure(head: Head) -> Choice | None:
    choice = detect(head)
    return choice if choice is not None and choice.match.confidence >= SURE else None
