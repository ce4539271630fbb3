"""Goes through the values of one saved state, and keeps what there is to say of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from torch import Tensor

from forensics.diagnose.state_health import BadValue, StateHealth
from forensics.diagnose.wording import counted
from forensics.record.health import is_bad, largest_by_kind
from forensics.replay.health.tensor_scan import Scan, looks_like_a_mask, scan_tensor
from forensics.replay.saved_states import SavedState, StateValue, roles

_STRICT = frozenset((roles.PARAM, roles.EMA, roles.SCALER, roles.LR))
_NOT_STATE = frozenset((roles.RNG, roles.CONFIG))
_NEVER_NEGATIVE = {
    roles.OPTIMIZER: ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"),
    roles.BUFFER: ("running_var",),
}


class Survey:
    """Takes the values of one state in, one after the other.

    Args:
        finite_before: names that an earlier state of the run had finite.

    Attributes:
        seen: bytes of the tensors taken in so far.
    """

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
        self.seen = 0

    def take(self, value: StateValue) -> None:
        """Look at every element of a value."""
        if value.kind in _NOT_STATE:
            return
        tensor = value.value
        if isinstance(tensor, Tensor):
            self._tensors += 1
            self._dtypes[_dtype(tensor)] += tensor.numel()
            self._absent += tensor.is_meta
            self.seen += tensor.nbytes
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
        if last == {roles.LR: "lr", roles.SCALER: "scale"}.get(value.kind):
            self._numbers[value.name] = scan.largest
        if scan.smallest < 0 and last in _NEVER_NEGATIVE.get(value.kind, ()):
            self._negative.append(value.name)

    def result(self, state: SavedState) -> StateHealth:
        """What was found in the state whose values were taken."""
        notes = list(state.notes)
        if self._absent:
            verb, them = ("is", "it") if self._absent == 1 else ("are", "them")
            notes.append(
                f"{counted(self._absent, 'tensor')} {verb} on the meta device: nothing is stored "
                f"of {them}."
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
            risks=self._risks(),
            notes=tuple(notes),
        )

    def _risks(self) -> tuple[str, ...]:
        if not self._negative:
            return ()
        more = f" and {len(self._negative) - 1} more" if len(self._negative) > 1 else ""
        verb = "are" if more else "is"
        return (
            f"{self._negative[0]}{more} {verb} negative in places, as no square can be: its root "
            "is NaN in the next step.",
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
