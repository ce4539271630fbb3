"""MLflow's files on disk: ``metrics/train/loss`` holds one metric, a line a value."""

from __future__ import annotations

from pathlib import Path

from forensics.runlog.scanner.names import name_columns

FOLDER = "metrics"
MARK = "meta.yaml"
"""Lies in the folder of a run, beside ``metrics``, ``params`` and ``tags``."""
_MOST = 200
_FIRST = ("loss", "grad_l2_pre_clip", "val_loss", "lr")
"""Columns by whose file a run is known, the most telling first."""


def is_mlflow(run: Path) -> bool:
    """Is a folder a run of MLflow's?"""
    return (run / MARK).exists() and (run / FOLDER).is_dir()


def folder_of(path: Path) -> Path | None:
    """The folder of all metrics that a file of one lies in; None where it lies in no such."""
    return next((parent for parent in path.absolute().parents if parent.name == FOLDER), None)


def files_beside(path: Path) -> dict[Path, str]:
    """The files of the run's metrics that are columns of the step table, and which each is.

    The file itself is always among them, under its own name where that is no column's.
    """
    folder = folder_of(path)
    if folder is None:
        return {path: next(iter(name_columns([path.name]).values()), path.name)}
    names = {
        other.relative_to(folder).as_posix(): other
        for other in [path.absolute(), *sorted(folder.rglob("*"))[:_MOST]]
        if other.is_file()
    }
    columns = name_columns(names)
    own = path.absolute().relative_to(folder).as_posix()
    columns.setdefault(own, own)
    return {names[name]: column for name, column in columns.items()}


def main_file(folder: Path) -> Path | None:
    """The file by which the run of a folder of metrics is read; None where it is no such folder."""
    if folder.name != FOLDER or not (folder.parent / MARK).exists():
        return None
    files = sorted(path for path in folder.rglob("*") if path.is_file())[:_MOST]
    columns = name_columns(path.relative_to(folder).as_posix() for path in files)
    by_column = {column: folder / name for name, column in columns.items()}
    return next((by_column[column] for column in _FIRST if column in by_column), None)
