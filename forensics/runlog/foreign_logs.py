"""Logs that other programs wrote: one file, several of one run, standard input, a directory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.importers import IMPORTERS
from forensics.runlog.importers.detect import Choice, detect, import_logs
from forensics.runlog.importers.refusals import is_binary, unknown
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.named_csv import header_of
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import number
from forensics.runlog.scanner.source import STDIN, head_of, spooled
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps

_SUFFIXES = frozenset((".json", ".jsonl", ".csv", ".tsv", ".log", ".txt", ".out", ".err", ".ipynb"))
_PACKED = frozenset((".gz", ".zst"))
_EVENTS = "tfevents"
_MOST_FILES = 200
_DEPTH = 2
"""Levels of a directory that are looked at: version_0/metrics.csv, checkpoint-500/…"""
_RUN_MARKS = ("run.json", "steps.csv", "steps.csv.gz")
_SURE = 0.3
"""Confidence from which a file in a directory is taken for its log."""
_CHECKPOINTED = "hf-trainer-state"
"""A format of which every checkpoint holds a copy: the last one has it all."""
_VALIDATION = frozenset(("validation", "val", "valid", "eval", "test"))
"""Folders beside the training's in which some writers keep what evaluations logged."""
_VIEWS = (
    frozenset(("hf-trainer-state", "hf-stdout", "tensorboard", "wandb-history")),
    frozenset(("lightning-csv", "tensorboard")),
    frozenset(("ultralytics-csv", "tensorboard")),
    frozenset(("keras-csv", "tensorboard")),
    frozenset(("nemo", "tensorboard")),
    frozenset(("openmmlab-json", "openmmlab-text", "tensorboard")),
    frozenset(("metric-logger-json", "metric-logger-text", "tensorboard")),
    frozenset(("llama-factory", "hf-trainer-state", "hf-stdout", "tensorboard")),
)
"""Formats that one trainer writes of one run into one directory."""
_MOST_NAMED = 6
"""Logs that a refusal names one by one."""
_CHECKPOINT = re.compile(r"checkpoint\W?\d+$")
_ROTATION = re.compile(r"[.\-_]?\d+(?=$|\.)")


def read_foreign(sources: Sequence[Path], reading: Reading) -> StepTable:
    """Read a log, or several files of one run joined, whatever wrote them.

    Args:
        sources: files, oldest first; ``-`` is standard input.
        reading: what the user says of format and columns.

    Raises:
        InputError: a file cannot be read, or is no training log.
        UsageError: a format or column that is not there.
    """
    first = sources[0]
    with ExitStack() as stack:
        files = [stack.enter_context(spooled(source)) for source in sources]
        try:
            return _read(files, reading)
        except InputError as error:
            if files[0] != first and error.where == str(files[0]):
                raise InputError(error.what, where=_named(first), hint=error.hint) from error
            raise


def _named(source: Path) -> object:
    return "standard input" if str(source) == STDIN else source


def _read(files: Sequence[Path], reading: Reading) -> StepTable:
    table = import_logs(files, reading)
    if table is not None:
        return table
    head = head_of(files[0])
    if head.lines and (is_binary(head.raw) or not (header_of(head) or _is_table(head))):
        raise unknown(files[0], head)
    return read_steps(files[0])  # which says what it is, or is not


def _is_table(head: Head) -> bool:
    """Is it a CSV whose rows are odd, of one column, or one that has lost its header?"""
    cells = [cell.strip() for cell in re.split(rb"[,;\t]", head.first_line)]
    if any(canonical_name(cell.decode("utf-8", "replace")) is not None for cell in cells):
        return True
    return len(cells) > 1 and all(number(cell) is not None for cell in cells)


def logs_in(directory: Path, reading: Reading) -> list[Path]:
    """The files that are the log of the one run in a directory, oldest first; none if none is.

    Raises:
        InputError: there are several that are not parts of one, or not known to be.
    """
    found: dict[str, list[Path]] = {}
    best: dict[str, float] = {}
    for path in _candidates(directory):
        choice = _choice(path, reading)
        if choice is not None and choice.match.confidence >= _SURE:
            name = choice.importer.name
            found.setdefault(name, []).append(path)
            best[name] = max(best.get(name, 0.0), choice.match.confidence)
    if not found:
        return []
    order = [importer.name for importer in IMPORTERS]
    name = max(found, key=lambda n: (round(best[n], 1), -order.index(n)))
    if any(not _same_writer(name, other) for other in found):
        files = [path for paths in found.values() for path in paths]
        raise several(directory, sorted(files, key=_natural), f"{len(found)} formats", parts=False)
    return _of_one_run(directory, name, found[name])


def _candidates(directory: Path) -> list[Path]:
    """Files in and just below a directory whose names are those of logs, in natural order."""
    found: list[Path] = []
    level = [directory]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(folder.iterdir(), key=_natural)
            except OSError:
                continue
            found += [entry for entry in entries if entry.is_file() and _is_log_name(entry)]
            below += [entry for entry in entries if entry.is_dir() and not _is_apart(entry)]
        level = below
    return found[:_MOST_FILES]


def _is_apart(folder: Path) -> bool:
    """Is it hidden, or a run of its own?"""
    return folder.name[0] == "." or any((folder / name).exists() for name in _RUN_MARKS)


def _is_log_name(path: Path) -> bool:
    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED]
    return _EVENTS in path.name or any(suffix in _SUFFIXES for suffix in suffixes[-2:])


def _natural(path: Path) -> list[tuple[int, str]]:
    """``checkpoint-500`` before ``checkpoint-1000``."""
    parts = re.findall(r"\d{1,18}|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _choice(path: Path, reading: Reading) -> Choice | None:
    try:
        return detect(head_of(path), reading)
    except InputError:
        return None


def _of_one_run(directory: Path, name: str, files: list[Path]) -> list[Path]:
    if name == _CHECKPOINTED:
        top = [path for path in files if path.parent == directory]
        copies = top or [path for path in files if _CHECKPOINT.match(path.parent.name)]
        if len(top) <= 1 and copies:
            return copies[-1:]
    files = [path for path in files if path.parent.name not in _VALIDATION] or files
    nearest = min(len(path.parts) for path in files)
    files = [path for path in files if len(path.parts) == nearest]
    one_folder = len({path.parent for path in files}) == 1
    stems = {_ROTATION.sub("", path.name) for path in files}
    if one_folder and (len(stems) == 1 or name == "tensorboard"):
        return sorted(files, key=lambda path: (path.stat().st_mtime, _natural(path)))
    raise several(directory, files, name)


def _same_writer(name: str, other: str) -> bool:
    """Do programs write these two formats side by side, as two views of one run?"""
    return name == other or any(name in views and other in views for views in _VIEWS)


def several(directory: Path, files: Sequence[Path], form: str, *, parts: bool = True) -> InputError:
    """The refusal to choose one of several logs in a directory: which there are, what to type.

    Args:
        directory: where they are.
        files: the logs.
        form: what they are read as.
        parts: may they be parts of one run?
    """
    names = [str(path.relative_to(directory)) for path in files]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    pasted = " ".join(shlex.quote(str(path)) for path in files[:_MOST_NAMED])
    return InputError(
        f"holds {len(files)} logs read as {form}: {', '.join(names[:_MOST_NAMED])}{more}",
        where=directory,
        hint=f"`forensics report {pasted}` judges each of {'these' if more else 'them'}"
        + ("; with --join, as parts of one run" if parts else ""),
    )


def of_one_run(directory: Path, files: Sequence[Path], table: StepTable) -> StepTable:
    """The table of the files of a directory, unless a later one counts its steps anew.

    Raises:
        InputError: one does: they are several runs, of which none may be left out.
    """
    first = int(table.step[0]) if len(table) else 0
    if len(files) > 1 and any(len(old) and int(old.step[0]) <= first for old in table.earlier):
        raise several(directory, files, table.source_format)
    return table
