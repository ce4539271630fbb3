"""Is one saved state finite, and where not? Judged without any recipe, tensor by tensor.

NaN is bad anywhere. ±Inf is bad in parameters, optimizer moments, averages, the learning rate and
the loss scale; elsewhere (a mask, the best loss so far) it may be meant, and is bad only where an
earlier state of the same run had the value finite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from forensics.diagnose.state_health import StateHealth
from forensics.errors import InputError
from forensics.replay.bisection import Judgement, State
from forensics.replay.health.state_survey import Survey
from forensics.replay.saved_states import Unit, open_state
from forensics.replay.saved_states.step_names import position_in_name
from forensics.runlog.checkpoint_files import (
    BadTensor,
    CheckpointInfo,
    bad_tensors,
    health_path,
    read_checkpoint_info,
)

Progress = Callable[[int, int], None]
"""Told how many bytes of tensors were looked at, and how many bytes the state has."""


def examine_state(
    path: Path,
    *,
    root: Path | None = None,
    finite_before: Collection[str] = frozenset(),
    progress: Progress | None = None,
) -> StateHealth:
    """Go through one saved state, in bounded memory whatever its size.

    Args:
        path: a file, or a folder of shards.
        root: the folder that links must not lead out of; None where the user named the path.
        finite_before: names that an earlier state of the run had finite.
        progress: told after each tensor.

    Raises:
        InputError: it cannot be read safely; the message is the whole story.
    """
    state = open_state(path, root)
    survey = Survey(finite_before)
    try:
        for value in state.values():
            survey.take(value)
            if progress is not None:
                progress(min(survey.seen, state.size), state.size)
    except MemoryError as error:
        raise InputError("needs more memory than there is", where=path) from error
    health = survey.result(state)
    return health if health.step is not None else replace(health, step=_step_in_name(path))


def _step_in_name(path: Path) -> int | None:
    """The step that a state's name tells where the state tells none, as in a folder of states."""
    position = position_in_name(path.name)
    return position.number if position is not None and position.unit is Unit.STEP else None


def judge_state(
    path: Path,
    *,
    root: Path | None = None,
    verify: bool = False,
    finite_before: Collection[str] = frozenset(),
) -> Judgement:
    """GOOD, BAD or UNTESTABLE, for ``bisection.search``.

    A health file beside one of this program's states is believed, unless the state is newer.

    Args:
        path: a file, or a folder of shards.
        root: the folder that links must not lead out of; None where the user named the path.
        verify: look into the state whatever a health file says.
        finite_before: names that an earlier state of the run had finite.
    """
    known = None if verify else believed(path)
    if known is not None:
        return known
    try:
        return judgement_of(examine_state(path, root=root, finite_before=finite_before).bad)
    except InputError as error:
        return Judgement(state=State.UNTESTABLE, reason=error.what)


def believed(path: Path) -> Judgement | None:
    """What the health file beside a state says; None where there is none, or it is older."""
    info = read_checkpoint_info(path)
    if info is None or not isinstance(info.health.get("finite"), bool) or not _is_older(info):
        return None
    return judgement_of(bad_tensors(info.health), finite=info.health["finite"])


def believed_bad(path: Path) -> tuple[BadTensor, ...]:
    """What the health file beside a state says is bad in it."""
    info = read_checkpoint_info(path)
    return bad_tensors(info.health) if info is not None else ()


def judgement_of(bad: Sequence[BadTensor], *, finite: bool | None = None) -> Judgement:
    """The judgement of a state with these bad values."""
    if not (bool(bad) if finite is None else not finite):
        return Judgement(state=State.GOOD)
    shown = "; ".join(describe(tensor) for tensor in bad[:2])
    rest = f" and {len(bad) - 2} more" if len(bad) > 2 else ""
    return Judgement(state=State.BAD, reason=f"{shown}{rest}" or "its health file says so")


def describe(tensor: BadTensor) -> str:
    """``fc.weight (param): 12 NaN of 4,096``, in one clause."""
    counts = [f"{n:,} {what}" for n, what in ((tensor.nan, "NaN"), (tensor.inf, "Inf")) if n]
    kind = f"{tensor.kind} of {tensor.parameter}" if _belongs(tensor) else tensor.kind
    share = f" of {tensor.numel:,}" if tensor.numel > 1 else ""
    return f"{tensor.name} ({kind}): {' and '.join(counts)}{share}"


def _belongs(tensor: BadTensor) -> bool:
    """Is its parameter worth naming beside its own name?"""
    return bool(tensor.parameter) and not tensor.name.endswith(tensor.parameter)


def _is_older(info: CheckpointInfo) -> bool:
    """Was the state written no later than its health file?"""
    try:
        return info.path.stat().st_mtime_ns <= health_path(info.path).stat().st_mtime_ns
    except OSError:
        return False
