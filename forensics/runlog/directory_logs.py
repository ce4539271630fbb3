"""The logs in a directory: which files are logs, and which of them tell of one run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from forensics.errors import ForensicsError, InputError, StoreError
from forensics.frozen import dataclass
from forensics.runlog.csv_reader.spans import size_of
from forensics.runlog.foreign_logs import read_foreign
from forensics.runlog.importers import IMPORTERS
from forensics.runlog.importers.detect import Choice, detect
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.same_run import begins_anew, is_another_view
from forensics.runlog.scanner.head import HEAD
from forensics.runlog.scanner.metric_files import main_file
from forensics.runlog.scanner.source import head_of
from forensics.runlog.steps import StepTable

_SUFFIX = re.compile(
    r"\.(?:jsonl?|ndjson|csv|tsv|log|txt|out|err|ipynb|stdout|stderr|[oe]\d{3,})\Z", re.IGNORECASE
)
_WORD = re.compile(r"(?:\A|[\W_])(?:logs?|nohup|stdout|stderr|output|slurm)(?:[\W_]|\Z)[^.]*\Z")
"""In a name without a suffix: ``nohup``, ``train_log``, ``slurm-4711``."""
_PACKED = re.compile(r"\.(?:gz|zst)\Z")
_EVENTS = "tfevents"
_MOST_EVENTS = 8 << 20
"""Bytes of event files that are read beside another view of the run: their reader is slow."""
_MOST_FILES = 200
_DEPTH = 2
"""Levels of a directory that are looked at: version_0/metrics.csv, checkpoint-500/…"""
_RUN_MARKS = ("run.json", "steps.csv", "steps.csv.gz")
SURE = 0.3
"""Confidence from which a file in a directory is taken for a log."""
CHECKPOINTED = "hf-trainer-state"
"""A format of which every checkpoint holds a copy: the last one has it all."""
VALIDATION = frozenset(("validation", "val", "valid", "eval", "test"))
"""Folders beside the training's in which some writers keep what evaluations logged."""
_VIEWS = (
    frozenset(("hf-trainer-state", "hf-stdout", "tensorboard", "wandb-history")),
    frozenset(("lightning-csv", "tensorboard")),
    frozenset(("ultralytics-csv", "ultralytics-text", "tensorboard")),
    frozenset(("keras-csv", "tensorboard")),
    frozenset(("nemo", "tensorboard")),
    frozenset(("openmmlab-json", "openmmlab-text", "tensorboard")),
    frozenset(("metric-logger-json", "metric-logger-text", "tensorboard")),
    frozenset(("llama-factory", "hf-trainer-state", "hf-stdout", "tensorboard")),
)
"""Formats that one trainer writes of one run into one directory."""
_MOST_NAMED = 6
"""Logs that a refusal names one by one."""
_MOST_ASIDE = 2
"""Files passed over that a note names one by one."""
CHECKPOINT = re.compile(r"checkpoint\W?\d+\Z")
ROTATION = re.compile(r"[.\-_]?\d+(?=\Z|\.)")


@dataclass(frozen=True)
class LogFile:
    """A file that is a log: where, whose, and how sure that is."""

    path: Path
    format: str
    confidence: float


@dataclass(frozen=True)
class Chosen:
    """The log of the one run in a directory.

    Attributes:
        files: its parts, oldest first; none where there is no log.
        views: logs of other formats that tell of the same run, the parts of each.
        aside: all logs that are not among ``files``.
    """

    files: tuple[Path, ...] = ()
    views: tuple[tuple[Path, ...], ...] = ()
    aside: tuple[Path, ...] = ()

    def instead(self, view: tuple[Path, ...]) -> Chosen:
        """Another of the views in the place of ``files``."""
        aside = [path for path in (*self.files, *self.aside) if path not in view]
        return Chosen(view, (), tuple(aside))

    def note(self, directory: Path) -> str:
        """Which is read, and which are not."""
        read = ", ".join(_shown(directory, self.files))
        if not self.aside:
            return f"read from {read}"
        named = _shown(directory, self.aside)[:_MOST_ASIDE]
        more = len(self.aside) - len(named)
        rest = f" and {more} more" if more else ""
        return f"read from {read}, not from {', '.join(named)}{rest}: taken for the same run"


def _shown(directory: Path, files: Iterable[Path]) -> list[str]:
    return [path.relative_to(directory).as_posix() for path in files]


def logs_in(directory: Path, reading: Reading) -> Chosen:
    """The files that are the log of the one run in a directory; none if none is.

    Those in the directory itself and in its checkpoints go before those in other folders below.

    Raises:
        InputError: there are several that are not parts of one, or not known to be.
    """
    own, below = _candidates(directory)
    logs = list(_logs(own, reading)) or list(_logs(below, reading))
    return one_run(directory, logs) if logs else Chosen()


def _candidates(directory: Path) -> tuple[list[Path], list[Path]]:
    """Files whose names are those of logs: of the directory and its checkpoints, and below it."""
    own: list[Path] = []
    below: list[Path] = []
    level = [directory]
    for depth in range(_DEPTH):
        folders: list[Path] = []
        for folder in level:
            files, inner = _entries(folder)
            metric = main_file(folder)
            logs = [metric] if metric else [path for path in files if is_log_name(path.name)]
            near = depth == 0 or CHECKPOINT.match(folder.name)
            (own if near else below).extend(logs)
            folders += [entry for entry in inner if not _is_apart(entry)]
        level = folders
    return own[:_MOST_FILES], below[:_MOST_FILES]


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files and the folders in a folder, in natural order; none where it is closed."""
    try:
        entries = sorted(folder.iterdir(), key=natural)
    except OSError:
        return [], []
    return [e for e in entries if e.is_file()], [e for e in entries if e.is_dir()]


def _is_apart(folder: Path) -> bool:
    """Is it hidden, or a run of its own?"""
    return folder.name[0] == "." or any((folder / name).exists() for name in _RUN_MARKS)


def is_log_name(name: str) -> bool:
    """Is a file called as logs are: by its suffix, by a word, or as an event file?"""
    if _EVENTS in name:
        return True
    bare = _PACKED.sub("", name)
    unrotated = ROTATION.sub("", bare) if not _SUFFIX.search(bare) else bare
    return bool(_SUFFIX.search(unrotated) or _SUFFIX.search(bare) or _WORD.search(unrotated))


def natural(path: Path) -> list[tuple[int, str]]:
    """``checkpoint-500`` before ``checkpoint-1000``."""
    parts = re.findall(r"\d{1,18}|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _logs(paths: Iterable[Path], reading: Reading) -> Iterator[LogFile]:
    for path in paths:
        choice = _choice(path, reading)
        if choice is not None and choice.match.confidence >= SURE:
            yield LogFile(path, choice.importer.name, choice.match.confidence)


def _choice(path: Path, reading: Reading, size: int = HEAD) -> Choice | None:
    try:
        return detect(head_of(path, size), reading)
    except InputError:
        return None


def one_run(directory: Path, logs: Sequence[LogFile]) -> Chosen:
    """Those of some logs that are the log of one run; the others tell of the same one.

    Raises:
        InputError: they are of several runs, or may be.
    """
    found: dict[str, list[Path]] = {}
    best: dict[str, float] = {}
    copies = _older_copies(directory, logs)
    for log in logs:
        if log.path in copies:
            continue
        found.setdefault(log.format, []).append(log.path)
        best[log.format] = max(best.get(log.format, 0.0), log.confidence)
    order = [importer.name for importer in IMPORTERS]
    name = max(found, key=lambda n: (round(best[n], 1), -order.index(n)))
    if any(not _same_writer(name, other) for other in found):
        files = sorted((path for paths in found.values() for path in paths), key=natural)
        raise several(directory, files, f"{len(found)} formats", parts=False)
    files = _of_one_format(directory, name, found.pop(name))
    views = [_of_one_format(directory, other, paths) for other, paths in found.items()]
    aside = [log.path for log in logs if log.path not in files]
    aside.sort(key=lambda path: (path in copies, natural(path.parent), natural(path)))
    return Chosen(tuple(files), tuple(map(tuple, views)), tuple(aside))


def _older_copies(directory: Path, logs: Iterable[LogFile]) -> set[Path]:
    """States in checkpoints of which a later one, or the directory's own, holds all they have."""
    states = [log.path for log in logs if log.format == CHECKPOINTED]
    below = [path for path in states if path.parent != directory]
    copies = [path for path in below if CHECKPOINT.match(path.parent.name)]
    if len(below) == len(states):
        copies = sorted(copies, key=lambda path: natural(path.parent))[:-1]
    return set(copies)


def _of_one_format(directory: Path, name: str, files: list[Path]) -> list[Path]:
    files = [path for path in files if path.parent.name not in VALIDATION] or files
    nearest = min(len(path.parts) for path in files)
    files = [path for path in files if len(path.parts) == nearest]
    one_folder = len({path.parent for path in files}) == 1
    stems = {ROTATION.sub("", path.name) for path in files}
    if one_folder and (len(stems) == 1 or name == "tensorboard"):
        return sorted(files, key=lambda path: (path.stat().st_mtime, natural(path)))
    raise several(directory, files, name)


def _same_writer(name: str, other: str) -> bool:
    """Do programs write these two formats side by side, as two views of one run?"""
    return name == other or any(name in views and other in views for views in _VIEWS)


class SeveralRunsError(InputError):
    """Logs in a directory that are of several runs, or may be."""


def several(
    directory: Path, files: Sequence[Path], form: str, *, parts: bool = True
) -> SeveralRunsError:
    """The refusal to choose one of several logs in a directory: which there are, what to type.

    Args:
        directory: where they are.
        files: the logs.
        form: what they are read as.
        parts: may they be parts of one run?
    """
    names = _shown(directory, files)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    pasted = " ".join(shlex.quote(str(path)) for path in files[:_MOST_NAMED])
    return SeveralRunsError(
        f"holds {len(files)} logs read as {form}: {', '.join(names[:_MOST_NAMED])}{more}",
        where=directory,
        hint=f"`forensics report {pasted}` judges each of {'these' if more else 'them'}"
        + ("; with --join, as parts of one run" if parts else ""),
    )


def read_chosen(directory: Path, chosen: Chosen, reading: Reading) -> StepTable:
    """The table of the log in a directory, with a note of which it is.

    Of several views of one run the one that reaches furthest is taken: a state that is saved at
    checkpoints does not know what came after the last one, and the console's log does. Views that
    tell of other losses at the same steps are of another run.

    Raises:
        InputError: it cannot be read.
        SeveralRunsError: it is of several runs after all.
        UsageError: the reading names a format or column that is not there.
    """
    files = chosen.files
    table = of_one_run(directory, files, read_foreign(files, reading))
    for view in chosen.views:
        other = _other_view(view, reading)
        if other is None:
            continue
        if (len(view) > 1 and begins_anew(other)) or not is_another_view(table, other):
            raise _no_views(directory, chosen)
        if _reaches_further(other, table):
            table, chosen = other, chosen.instead(view)
    facts = table.facts or LogFacts()
    return replace(table, facts=replace(facts, notes=(chosen.note(directory), *facts.notes)))


def _no_views(directory: Path, chosen: Chosen) -> SeveralRunsError:
    """The refusal of logs of several formats that do not tell of one run."""
    files = sorted({*chosen.files, *(path for view in chosen.views for path in view)}, key=natural)
    return several(directory, files, f"{1 + len(chosen.views)} formats", parts=False)


def _other_view(view: Sequence[Path], reading: Reading) -> StepTable | None:
    if any(_EVENTS in path.name for path in view) and sum(map(size_of, view)) > _MOST_EVENTS:
        return None
    try:
        return read_foreign(view, reading)
    except StoreError:  # a part of what tells of a run is no reason for another verdict
        raise
    except ForensicsError:  # the first one can be read, and an extra may be missing for this one
        return None


def _reaches_further(other: StepTable, table: StepTable) -> bool:
    """Does one table tell of what came after another, in the same unit?"""
    ours, theirs = table.facts or LogFacts(), other.facts or LogFacts()
    if not len(other) or ours.unit != theirs.unit or not other.has("loss"):
        return False
    if not len(table):
        return True
    last, others = int(table.step[-1]), int(other.step[-1])
    return others > last or (others == last and bool(theirs.ended) and not ours.ended)


def of_one_run(directory: Path, files: Sequence[Path], table: StepTable) -> StepTable:
    """The table of the files of a directory, unless a later one is of another run.

    Raises:
        SeveralRunsError: one is: they are several runs, of which none may be left out.
    """
    if len(files) > 1 and begins_anew(table):
        raise several(directory, files, table.source_format)
    return table
