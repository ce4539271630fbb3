"""Is one saved state finite, and where not? Judged without any recipe, tensor by tensor.

NaN is bad anywhere. ±Inf is bad in parameters, optimizer moments, averages, the learning rate and
the loss scale; elsewhere (a mask, the best loss so far) it may be meant, and is bad only where an
earlier state of the same run had the value finite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from forensics.errors import InputError
from forensics.record.health import BadTensor, is_bad, largest_by_kind
from forensics.replay.bisection import Judgement, State
from forensics.replay.saved_states import SavedState, StateValue, open_state, roles
from forensics.replay.tensor_scan import Scan, looks_like_a_mask, scan_tensor
from forensics.runlog.checkpoint_files import CheckpointInfo, read_checkpoint_info

_STRICT = frozenset((roles.PARAM, roles.EMA, roles.SCALER, roles.LR))
_NOT_STATE = frozenset((roles.RNG, roles.CONFIG))
_NEVER_NEGATIVE = {
    roles.OPTIMIZER: ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"),
    roles.BUFFER: ("running_var",),
}


@dataclass(frozen=True)
class BadValue(BadTensor):
    """A bad tensor or number, and what it looks like.

    Attributes:
        shape: size per dimension; () for a number.
        dtype: such as ``float16``; ``number`` for a plain one.
        first: index of the first element that is not finite.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "number"
    first: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateHealth:
    """What one saved state was found to be.

    Attributes:
        path: file or folder.
        format: in words.
        step: the step it stands before; None where nothing tells.
        size: bytes.
        tensors: how many it holds.
        elements: how many those have.
        dtypes: elements by dtype, most first.
        bad: what is bad, in the order of the state.
        infinite: what is infinite and may be meant to be, such as a mask.
        finite_names: the values that were finite and are judged by whether they stay so.
        extremes: per kind ``{"name", "absmax"}`` of the finite tensor with the largest element.
        numbers: learning rates and the loss scale, by name.
        missing: what a resume needs and the state has not, a clause each.
        notes: what else the reader must know, a sentence each.
    """

    path: Path
    format: str
    step: int | None
    size: int
    tensors: int
    elements: int
    dtypes: Mapping[str, int]
    bad: tuple[BadValue, ...]
    infinite: tuple[BadValue, ...]
    finite_names: frozenset[str]
    extremes: Mapping[str, Any]
    numbers: Mapping[str, float]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        """True where nothing is bad."""
        return not self.bad


def examine_state(
    path: Path, *, root: Path | None = None, finite_before: Collection[str] = frozenset()
) -> StateHealth:
    """Go through one saved state, in bounded memory whatever its size.

    Args:
        path: a file, or a folder of shards.
        root: the folder that links must not lead out of; None where the user named the path.
        finite_before: names that an earlier state of the run had finite.

    Raises:
        InputError: it cannot be read safely; the message is the whole story.
    """
    state = open_state(path, root)
    survey = _Survey(finite_before)
    try:
        for value in state.values():
            survey.take(value)
    except MemoryError as error:
        raise InputError("needs more memory than there is", where=path) from error
    return survey.result(state)


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
    return judgement_of(_bad_in(info.health), finite=info.health["finite"])


def believed_bad(path: Path) -> tuple[BadTensor, ...]:
    """What the health file beside a state says is bad in it."""
    info = read_checkpoint_info(path)
    return tuple(_bad_in(info.health)) if info is not None else ()


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
    from forensics.runlog.checkpoint_files import health_path

    try:
        return info.path.stat().st_mtime_ns <= health_path(info.path).stat().st_mtime_ns
    except OSError:
        return False


def _bad_in(health: Mapping[str, Any]) -> list[BadTensor]:
    """The bad tensors of a health file; entries that make no sense are left out."""
    entries = health.get("bad")
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            name, kind, parameter = (str(entry.get(k, "")) for k in ("name", "kind", "parameter"))
            nan, inf, numel = (entry.get(key, 0) for key in ("nan", "inf", "numel"))
            if all(type(count) is int for count in (nan, inf, numel)):
                found.append(BadTensor(name, kind, parameter, nan, inf, numel))
    return found


class _Survey:
    """Takes the values of one state in, one after the other."""

    def __init__(self, finite_before: Collection[str]) -> None:
        self._finite_before = finite_before
        self._bad: list[BadValue] = []
        self._infinite: list[BadValue] = []
        self._finite: set[str] = set()
        self._largest: list[tuple[str, str, float]] = []
        self._numbers: dict[str, float] = {}
        self._dtypes: Counter[str] = Counter()
        self._tensors = self._absent = 0
        self._negative: list[str] = []

    def take(self, value: StateValue) -> None:
        tensor = value.value
        if isinstance(tensor, Tensor):
            self._tensors += 1
            self._dtypes[_dtype(tensor)] += tensor.numel()
            self._absent += tensor.is_meta
        if value.kind in _NOT_STATE:
            return
        if isinstance(tensor, Tensor):
            scan = scan_tensor(tensor)
            shape, dtype = tuple(tensor.shape), _dtype(tensor)
        else:
            scan, shape, dtype = _number(tensor), (), "number"
        if scan is None:
            return
        if scan.finite:
            self._take_finite(value, scan)
            return
        found = BadValue(
            value.name,
            value.kind,
            value.parameter,
            scan.nan,
            scan.inf,
            scan.numel,
            shape,
            dtype,
            scan.first,
        )
        strict = _is_strict(value)
        before = value.name in self._finite_before
        if is_bad(scan.nan, strict=strict, finite_before=before):
            self._bad.append(found)
        else:
            self._infinite.append(found)

    def _take_finite(self, value: StateValue, scan: Scan) -> None:
        self._finite.add(value.name)
        if isinstance(value.value, Tensor):
            self._largest.append((value.name, value.kind, scan.absmax))
        last = value.name.rpartition(".")[2]
        if value.kind == roles.LR or (value.kind == roles.SCALER and last in ("scale", "_scale")):
            self._numbers[value.name] = scan.largest
        if scan.smallest < 0 and last in _NEVER_NEGATIVE.get(value.kind, ()):
            self._negative.append(value.name)

    def result(self, state: SavedState) -> StateHealth:
        notes = list(state.notes)
        if self._absent:
            notes.append(
                f"{self._absent} tensors are on the meta device: nothing is stored of them."
            )
        if self._negative:
            more = f" and {len(self._negative) - 1} more" if len(self._negative) > 1 else ""
            notes.append(
                f"{self._negative[0]}{more} is negative in places, which no square is: its root "
                "is NaN in the next step."
            )
        return StateHealth(
            path=state.path,
            format=state.format,
            step=state.step,
            size=state.size,
            tensors=self._tensors,
            elements=self._dtypes.total(),
            dtypes=dict(self._dtypes.most_common()),
            bad=tuple(self._bad),
            infinite=tuple(self._infinite),
            finite_names=frozenset(self._finite),
            extremes=largest_by_kind(self._largest),
            numbers=self._numbers,
            missing=state.missing,
            notes=tuple(notes),
        )


def _is_strict(value: StateValue) -> bool:
    """May this value never be infinite?"""
    tensor = value.value
    if value.kind == roles.OPTIMIZER:
        return isinstance(tensor, Tensor)
    if value.kind == roles.EMA and not value.parameter:
        return False
    if value.kind not in _STRICT:
        return False
    # Nobody says of a foreign state which of a model's tensors are buffers.
    return not (isinstance(tensor, Tensor) and looks_like_a_mask(tensor))


def _number(value: float) -> Scan:
    nan, inf = math.isnan(value), math.isinf(value)
    return Scan(value, value, int(nan), int(inf), 1, ())


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
