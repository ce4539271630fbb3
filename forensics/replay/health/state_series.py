"""The saved states of a folder as one series: in order, and those of one step together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forensics.errors import InputError
from forensics.replay.saved_states import (
    Position,
    StateFile,
    Unit,
    find_states,
    is_state_folder,
    open_state,
)
from forensics.replay.saved_states.finder import parts_of
from forensics.replay.saved_states.noted_states import noted_in


@dataclass(frozen=True)
class Candidate:
    """All that was saved at one position: one state, or the parts of one.

    Attributes:
        number: step, epoch, or whatever the series counts.
        files: what was saved then, by name.
    """

    number: int
    files: tuple[StateFile, ...]

    @property
    def path(self) -> str:
        """The first file, or folder."""
        return str(self.files[0].path)

    @property
    def shown(self) -> str:
        """All of it: the file, the folder of its parts, or the files."""
        first = self.files[0]
        if len(self.files) > 1 and self.in_a_folder:
            return str(first.path.parent)
        return ", ".join(str(file.path) for file in self.files)

    @property
    def in_a_folder(self) -> bool:
        """Does it lie in a folder of its own, such as ``global_step500``?"""
        return all(file.path.parent != file.root for file in self.files)


@dataclass(frozen=True)
class Series:
    """The states of a folder, oldest first.

    Attributes:
        candidates: in order.
        unit: what their numbers count.
        notes: what was left out, a sentence each.
    """

    candidates: tuple[Candidate, ...]
    unit: Unit
    notes: tuple[str, ...] = ()


def series_in(folder: Path) -> Series:
    """Order the states of a folder.

    A folder may hold several series (``step-100.pt`` and ``epoch-3.pt``): the one with steps is
    taken, else the longest. Files of one step (a generator's and a discriminator's) are one state.
    Where nothing tells a step, the time of writing orders them.

    Raises:
        InputError: there is no saved state.
    """
    folder, noted = _states_folder(folder), noted_in(folder)
    if noted and folder.name != "checkpoints":
        return _noted(noted)
    found = _without_twins(find_states(folder))
    placed = [state for state in found if state.position is not None]
    if not placed:
        return _one_state(folder) or _by_time(folder, found)
    units = Counter(state.position.unit for state in placed if state.position)
    unit = Unit.STEP if units[Unit.STEP] else units.most_common(1)[0][0]
    taken: dict[int, list[StateFile]] = {}
    left: list[StateFile] = []
    for state in found:
        if state.position is not None and state.position.unit is unit:
            taken.setdefault(state.position.number, []).append(state)
        else:
            left.append(state)
    candidates = tuple(Candidate(number, tuple(taken[number])) for number in sorted(taken))
    return Series(candidates, unit, (*_left_out(left, unit), *_merged(candidates, unit)))


def _noted(states: list[tuple[int, Path]]) -> Series:
    """What a trainer saved elsewhere, as the run's manifest notes it."""
    candidates = []
    for step, path in states:
        parts = [path] if not path.is_dir() or is_state_folder(path) else parts_of(path)
        root = path if path.is_dir() else path.parent
        files = tuple(StateFile(part, Position(Unit.STEP, step), root) for part in parts)
        if files:
            candidates.append(Candidate(step, files))
    if not candidates:
        raise InputError("is noted in run.json and holds no saved state", where=states[0][1])
    return Series(tuple(candidates), Unit.STEP)


def _merged(candidates: Iterable[Candidate], unit: Unit) -> tuple[str, ...]:
    """That several files were taken for one state: they may be of two trainings."""
    several = (c for c in candidates if len(c.files) > 1 and not c.in_a_folder)
    first = next(several, None)
    if first is None:
        return ()
    names = " and ".join(file.path.name for file in first.files[:3])
    more = f" (and {len(first.files) - 3} more)" if len(first.files) > 3 else ""
    return (
        f"Files of one {unit.value} are taken as one state, such as {names}{more}: if they are of "
        "several trainings, put each into a folder of its own.",
    )


def _states_folder(folder: Path) -> Path:
    """The folder itself, or ``checkpoints`` in a run directory, which may lie on another disk."""
    inner = folder / "checkpoints"
    return inner if inner.is_dir() else folder


def _without_twins(states: Iterable[StateFile]) -> list[StateFile]:
    """Leave out links to other states of the folder: ``latest.pt``."""
    states = list(states)
    real = {state.path for state in states if not state.path.is_symlink()}
    home = {path.resolve() for path in real}
    return [s for s in states if s.refused or s.path in real or s.path.resolve() not in home]


def _one_state(folder: Path) -> Series | None:
    """The folder as one state: shards without a step of their own."""
    try:
        state = open_state(folder)
    except InputError:
        return None
    position = Position(Unit.STEP, state.step) if state.step is not None else None
    file = StateFile(folder, position, folder.parent)
    return Series((Candidate(state.step or 0, (file,)),), Unit.STEP)


def _by_time(folder: Path, found: list[StateFile]) -> Series:
    if not found:
        raise InputError("holds no saved state", where=folder)
    found = sorted(found, key=lambda state: (_written(state.path), state.path.name))
    candidates = tuple(Candidate(i, (state,)) for i, state in enumerate(found))
    note = "No state tells its step: they are counted in the order in which they were written."
    return Series(candidates, Unit.NUMBER, (note,))


def _written(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _left_out(left: list[StateFile], unit: Unit) -> tuple[str, ...]:
    if not left:
        return ()
    names = ", ".join(state.path.name for state in left[:3])
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    tells = "tells" if len(left) == 1 else "tell"
    return (f"{names}{more} {tells} no {unit.value} and had to be left out of the order.",)
