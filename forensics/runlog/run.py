"""A recorded run as one frozen value; any part may be missing."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.errors import InputError, UsageError, without_secrets
from forensics.frozen import dataclass
from forensics.runlog.activations import ActivationStore
from forensics.runlog.checkpoint_files import CheckpointInfo, checkpoints_in, is_state
from forensics.runlog.lock import LOCK_NAME, Holding, read_lock
from forensics.runlog.manifest import MANIFEST_NAME, Manifest, NewerSchemaError, read_manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.rank_files import RankMark, as_known, read_mark
from forensics.runlog.reading import Reading
from forensics.runlog.steps import Repair, StepTable
from forensics.runlog.steps_csv import is_own_log, read_steps
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    from forensics.diagnose.finding import Diagnosis
    from forensics.runlog.stores.mirror import Mirror

__all__ = ["CheckpointInfo", "Run", "load_run"]

STEP_LOGS = ("steps.csv", "steps.csv.gz")
_PARTS = (MANIFEST_NAME, "params", "activations", "checkpoints", "ranks", "superseded")
_EVIDENCE = ("params", "activations", "checkpoints", "superseded")
"""Parts that tell something of a run whose step log cannot be read."""
_RANK = re.compile(r"rank-(\d{5})\.csv\Z")
_LARGEST_JSON = 64 << 20


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        path: the run directory, or the step log when that is all there is; of a run that lies
            elsewhere what stands for it here, which ``named`` calls by its URI.
        steps: the step log; no rows where it is missing.
        manifest: ``run.json``, or None.
        params: per-parameter snapshots, or None.
        checkpoints: in ascending order of step.
        activations: per-module activation statistics, or None.
        ranks: per rank ≥ 1 its own local losses and norms, taken before the reduction; no rows
            for a rank whose log is missing.
        rank_zero: the same of rank 0, whose reduced norms are in the step log; or None.
        rank_marks: where each rank is, or was when it was last heard of, by rank.
        bisection: the parsed ``bisect.json`` of the last bisection, or None.
        superseded: step logs that resumes replaced and earlier runs in the same file, oldest
            first.
        part_repairs: what was wrong with the parts beside the step log.
        unfinished: nobody has written how it ended, and its process is not known to be gone: it
            may still be being written, and a torn end is no damage.
        elsewhere: what stands for the places in stores that it was read from.
    """

    path: Path
    steps: StepTable
    manifest: Manifest | None = None
    params: ParamStore | None = None
    checkpoints: tuple[CheckpointInfo, ...] = ()
    activations: ActivationStore | None = None
    ranks: tuple[StepTable, ...] = ()
    rank_zero: StepTable | None = None
    rank_marks: tuple[RankMark, ...] = ()
    bisection: dict[str, Any] | None = None
    superseded: tuple[StepTable, ...] = ()
    part_repairs: tuple[Repair, ...] = ()
    unfinished: bool = False
    elsewhere: tuple[Mirror, ...] = ()

    def named(self, path: Path | None = None) -> str:
        """A path in the run (default: the run's own) as the user would type it.

        Of a URI without passwords and signatures: whatever is told of a run ends up in files.
        """
        place = self.path if path is None else path
        uris = (mirror.uri_of(place) for mirror in self.elsewhere)
        return without_secrets(next(filter(None, uris), str(place)))

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """All that had to be mended: step log, other parts, and snapshots as far as read."""
        stores = (self.params, self.activations)
        found = [repair for store in stores if store is not None for repair in store.repairs]
        if self.unfinished:
            found = [_still_written(repair) for repair in found]
        return (*self.steps.repairs, *self.part_repairs, *found)

    def diagnose(self) -> Diagnosis:
        """What went wrong in this run; see ``diagnose_run`` for rules and thresholds."""
        # By the public name: this stage knows none of the later ones, and still reads naturally.
        import forensics

        return forensics.diagnose_run(self)

    def _repr_html_(self) -> str:
        """What went wrong in this run, for a notebook; the rules run once a display."""
        import forensics

        return forensics.render_html_summary(self.diagnose())


def load_run(path: str | os.PathLike[str], reading: Reading | None = None) -> Run:
    """Load a run.

    Args:
        path: a run directory, its ``steps.csv`` or ``run.json`` (both load the whole run), or a
            log on its own, whoever wrote it: compressed or not, ``-`` for standard input, or a
            directory with such logs in it. Or the URI of one: ``s3://bucket/runs/x``.
        reading: what the user says of a foreign log's format and columns.

    Raises:
        InputError: there is no such file, no run in the directory, no training log in the file,
            or a newer version of this program has written it.
        UsageError: ``reading`` names a format or a column that is not there.
        StoreError: the store that a URI names does not answer, or refuses.
    """
    if is_uri(path):
        from forensics.runlog.stores.loading import from_elsewhere

        told = reading.progress if reading is not None else None
        return from_elsewhere([path], lambda places: load_run(places[0], reading), told)
    source = Path(path)
    reading = reading or Reading()
    if str(source) == "-":
        return _load_foreign(source, reading)
    try:
        source.stat()
    except (FileNotFoundError, NotADirectoryError):
        from forensics.runlog.meant import no_such

        raise no_such(source) from None
    except (OSError, ValueError) as error:  # a name too long, a loop of links, no permission
        raise InputError(getattr(error, "strerror", None) or str(error), where=source) from error
    if source.is_dir():
        if _is_run(source) and reading.plain:
            return _load_directory(source, reading)
        return _load_foreign(source, reading)
    home = source.parent
    whole = source.name in STEP_LOGS and any((home / part).exists() for part in _PARTS)
    if whole or source.name == MANIFEST_NAME:
        return _load_directory(home, reading)
    if reading.plain and is_own_log(source):
        steps = read_steps(source, reading.progress)
        return Run(path=source, steps=steps, superseded=steps.earlier)
    return _load_foreign(source, reading)


def _load_foreign(source: Path, reading: Reading) -> Run:
    """A log of another program; its readers are imported only here."""
    from forensics.runlog.foreign_logs import read_foreign

    piped = str(source) == "-"
    if not piped and source.is_dir():
        return _load_logs_in(source, reading)
    if not piped and source.is_file() and is_state(source):
        raise InputError(
            "is a saved state, not a log",
            where=source,
            hint=f"`forensics inspect {shlex.quote(str(source))}` looks into it",
        )
    steps = read_foreign([source], reading)
    return Run(path=source, steps=steps, superseded=steps.earlier)


def _load_logs_in(directory: Path, reading: Reading) -> Run:
    """The log in a directory, with a note of which file it is."""
    from forensics.runlog.directory_logs import logs_in, read_chosen

    chosen = logs_in(directory, reading)
    if not chosen.files:
        from forensics.runlog.meant import in_directory

        hint = in_directory(directory, _is_run, is_state)
        raise InputError("holds no run", where=directory, hint=hint)
    steps = read_chosen(directory, chosen, reading)
    return Run(path=directory, steps=steps, superseded=steps.earlier)


def _refuse_no_files(sources: Sequence[Path]) -> None:
    """Of several parts of one run each is a file, and another one."""
    seen: set[str] = set()
    for source in sources:
        piped = str(source) == "-"
        if not piped and source.is_dir():
            hint = "--join takes the log files themselves, oldest first"
            raise InputError("is a directory", where=source, hint=hint)
        if not piped and not source.exists():
            from forensics.runlog.meant import no_such

            raise no_such(source)
        real = "-" if piped else os.path.realpath(source)
        if real in seen:
            raise UsageError("is named twice", where=source)
        seen.add(real)


def load_joined(paths: Sequence[str | os.PathLike[str]], reading: Reading | None = None) -> Run:
    """Load several log files of one run as one, oldest first; the run is called as the first.

    Raises:
        InputError: one cannot be read, or is no log.
        UsageError: ``reading`` names a format or a column that is not there, or a file is named
            twice.
    """
    from forensics.runlog.foreign_logs import read_foreign

    if any(map(is_uri, paths)):
        from forensics.runlog.stores.loading import from_elsewhere

        told = reading.progress if reading is not None else None
        return from_elsewhere(paths, lambda places: load_joined(places, reading), told)
    sources = [Path(path) for path in paths]
    _refuse_no_files(sources)
    steps = read_foreign(sources, reading or Reading())
    return Run(path=sources[0], steps=steps, superseded=steps.earlier)


def _load_directory(directory: Path, reading: Reading) -> Run:
    repairs: list[Repair] = []
    manifest = _manifest(directory, repairs)
    steps = _steps(directory, manifest, repairs, reading)
    unfinished = manifest is not None and manifest.running and not _known_dead(directory)
    if unfinished:
        steps = replace(steps, repairs=tuple(map(_still_written, steps.repairs)))
    params, activations = directory / "params", directory / "activations"
    beside = _listed(directory / "ranks", repairs)
    rank_zero, ranks = _ranks(beside, repairs)
    return Run(
        path=directory,
        steps=steps,
        manifest=manifest,
        params=ParamStore(params) if params.is_dir() else None,
        checkpoints=_checkpoints(directory, repairs),
        activations=ActivationStore(activations) if activations.is_dir() else None,
        ranks=ranks,
        rank_zero=rank_zero,
        rank_marks=as_known(_rank_marks(beside, repairs), _last_rows(rank_zero, ranks)),
        bisection=_bisection(directory, repairs),
        superseded=(*_superseded(directory, repairs), *steps.earlier),
        part_repairs=tuple(repairs),
        unfinished=unfinished,
    )


def _is_run(directory: Path) -> bool:
    if any((directory / name).exists() for name in (*STEP_LOGS, MANIFEST_NAME)):
        return True
    if not (directory / "params").exists():
        return False
    from forensics.runlog.scanner.metric_files import is_mlflow

    return not is_mlflow(directory)  # it has a folder params, too


# -- the parts: one that is broken becomes a repair, and the others are read -----------------


def _manifest(directory: Path, repairs: list[Repair]) -> Manifest | None:
    if not (directory / MANIFEST_NAME).exists():
        return None
    try:
        return read_manifest(directory)
    except NewerSchemaError:
        raise
    except InputError as error:
        message = f"{MANIFEST_NAME} {error.what}; what it said of the run is unknown"
        repairs.append(Repair("broken-manifest", message, lossy=True))
        return None


def _steps(
    directory: Path, manifest: Manifest | None, repairs: list[Repair], reading: Reading
) -> StepTable:
    path = next((directory / name for name in STEP_LOGS if (directory / name).exists()), None)
    if path is None:
        message = "there is no steps.csv; only the other parts of the run can be judged"
        repairs.append(Repair("missing-step-log", message, lossy=True))
        return StepTable.from_arrays({})
    try:
        return read_steps(path, reading.progress)
    except InputError as error:
        if any((directory / part).exists() for part in _EVIDENCE):
            message = f"{path.name} {error.what}; only the other parts of the run can be judged"
            repairs.append(Repair("broken-step-log", message, lossy=True))
            return StepTable.from_arrays({})
        if manifest is not None and manifest.ended is not None and manifest.ended.message:
            how = f"the run ended with {manifest.ended.message}"
            raise InputError(error.what, where=error.where, hint=how) from error
        raise


def _checkpoints(directory: Path, repairs: list[Repair]) -> tuple[CheckpointInfo, ...]:
    folder = directory / "checkpoints"
    if not folder.is_dir():
        return ()
    try:
        return checkpoints_in(folder)
    except OSError as error:
        _unreadable(repairs, "checkpoints", error)
        return ()


def _ranks(
    paths: list[Path], repairs: list[Repair]
) -> tuple[StepTable | None, tuple[StepTable, ...]]:
    """The log of rank 0, and those of the others."""
    found: dict[int, StepTable] = {}
    for path in paths:
        match = _RANK.match(path.name)
        if match:
            table = _other_log(path, repairs)
            if table is not None:
                found[int(match.group(1))] = table
    zero, missing = found.pop(0, None), StepTable.from_arrays({})
    return zero, tuple(found.get(rank, missing) for rank in range(1, max(found, default=0) + 1))


def _last_rows(zero: StepTable | None, others: Sequence[StepTable]) -> dict[int, int]:
    logs = enumerate((zero, *others))
    return {rank: int(log.step[-1]) for rank, log in logs if log is not None and len(log)}


def _rank_marks(paths: list[Path], repairs: list[Repair]) -> tuple[RankMark, ...]:
    found = []
    for path in paths:
        try:
            found.append(read_mark(path))
        except OSError as error:
            _unreadable(repairs, path.name, error)
    return tuple(mark for mark in found if mark is not None)


def _superseded(directory: Path, repairs: list[Repair]) -> tuple[StepTable, ...]:
    folders = [p for p in _listed(directory / "superseded", repairs) if p.name.isdecimal()]
    logs = [p / STEP_LOGS[0] for p in sorted(folders, key=lambda p: int(p.name))]
    tables = [_other_log(path, repairs) for path in logs if path.exists()]
    return tuple(table for table in tables if table is not None)


def _other_log(path: Path, repairs: list[Repair]) -> StepTable | None:
    try:
        return read_steps(path)
    except InputError as error:
        name = path.relative_to(path.parents[1]).as_posix()
        repairs.append(Repair("broken-part", f"{name} {error.what}", lossy=True))
        return None


def _bisection(directory: Path, repairs: list[Repair]) -> dict[str, Any] | None:
    path = directory / "bisect.json"
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError("too large")
        if not path.is_file():
            raise ValueError("not a file")
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _unreadable(repairs, path.name, error)
        return None
    return data


def _listed(folder: Path, repairs: list[Repair]) -> list[Path]:
    """What is in a folder, by name; nothing where there is no such folder."""
    if not folder.is_dir():
        return []
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        _unreadable(repairs, folder.name, error)
        return []


def _unreadable(repairs: list[Repair], name: str, error: Exception) -> None:
    reason = " ".join(str(error).split())[:120]
    repairs.append(Repair("broken-part", f"{name} cannot be read ({reason})", lossy=True))


# -- a run that goes on ------------------------------------------------------------------------


def _known_dead(directory: Path) -> bool:
    """Is the process that held the run's lock known to be gone?"""
    holder = read_lock(directory / LOCK_NAME)
    return holder is not None and holder.state() is Holding.DEAD


def _still_written(repair: Repair) -> Repair:
    """A torn end is no damage while it may still be being written."""
    if repair.kind not in ("torn-last-line", "torn-snapshots"):
        return repair
    message = f"{repair.message}; the run has not ended, so it may still be being written"
    return replace(repair, message=message, lossy=False)
