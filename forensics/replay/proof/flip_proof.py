"""The one bit that was flipped in a record that no replay repeats, proven by flipping it.

Where the
log has a digest of the parameters it tells the one element and bit by itself: a flipped bit changes
the digest's sum by a power of two times the place. Otherwise the next saved state, held against the
replay, shows which element differs most. Either is proven by the replay: with that bit flipped, its
rows are the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forensics.errors import InputError
from forensics.record.extra_columns import digest_of_sums, param_sums
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session

SEARCHED = 1 << 21
"""Digests that are tried: two million take a few seconds."""
TRIALS = 160
"""Steps that are replayed with a flipped bit: five elements of 32 bits."""
MOST_ELEMENTS = 5
"""Elements of a saved state that are tried, those that differ most."""
LATER = 64
"""Steps that are replayed to reach the next saved state."""

_TELLING = ("loss", "grad_l2_pre_clip")
"""Columns of which one must be finite for a row to tell one flip from another."""
BUFFER = "buffer"
"""Key of a flip in a buffer."""

_BITS: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One bit of one element.

    Attributes:
        parameter: its name; a buffer's where ``key`` is ``BUFFER``.
        key: empty for the parameter itself, else the key of the optimizer's state.
        index: place in the flattened tensor.
        bit: from 0, the least significant one.
    """

    parameter: str
    key: str
    index: int
    bit: int

    @property
    def name(self) -> str:
        """As a bisection names what it is: ``layers.0.weight``, ``head.weight.exp_avg_sq``."""
        own = self.key in ("", BUFFER)
        return self.parameter if own else f"{self.parameter}.{self.key}"


@dataclass(frozen=True, kw_only=True)
class ProvenFlip:
    """A flip with which the replay is the record.

    Attributes:
        flip: which bit.
        step: the first step that computed with the changed value.
        element: of the tensor.
        before: the value that the replay has.
        after: with the bit flipped.
    """

    flip: Flip
    step: int
    element: tuple[int, ...]
    before: float
    after: float


def prove_flip(session: Session, departure_step: int) -> ProvenFlip | None:
    """The one flipped bit with which the replay gives the recorded row of a departure.

    Args:
        session: compares bit for bit; it is left anywhere.
        departure_step: the first row in which the replay is not the record.

    Returns:
        None where no single bit explains the row, or none was found within the limits above.
    """
    search = _Search(session, departure_step)
    return search.by_digest() or search.by_saved_state()


class _Search:
    """Stands before the step whose row departs, and before the one in front of it."""

    def __init__(self, session: Session, step: int) -> None:
        self.session, self.step = session, step
        session.go_to(max(step - 2, 0))
        self.states: dict[int, MemoryState] = {}
        while session.step_index < step:
            if session.step_index == step - 1:
                self.states[step - 1] = session.capture()
            session.run_step(check_state=False)
        self.states[step] = session.capture()

    def by_digest(self) -> ProvenFlip | None:
        """The flip that turns the replay's digest into the recorded one."""
        row = self.session.recorded(self.step) or {}
        wanted = row.get("param_digest")
        if not isinstance(wanted, str):
            return None
        self.session.restore(self.states[self.step])
        parameters = list(self.session.model.named_parameters())
        for flip in flips_to(parameters, wanted):
            if tried := self._try(flip, self.step):
                return tried
        return None

    def by_saved_state(self) -> ProvenFlip | None:
        """The flip of an element that differs most in the next saved state.

        A row of NaN alone proves nothing: many a flip makes one.
        """
        row = self.session.recorded(self.step) or {}
        if not any(math.isfinite(row.get(name, math.nan)) for name in _TELLING):
            return None
        trials = TRIALS
        for parameter, key, index in self._differing():
            flip = Flip(parameter=parameter, key=key, index=index, bit=0)
            self.session.restore(self.states[self.step])
            width = 8 * _tensor(self.session, flip).element_size()
            for step in sorted(self.states, reverse=True):
                for bit in reversed(range(width)):
                    if trials <= 0:
                        return None
                    trials -= 1
                    flip = Flip(parameter=parameter, key=key, index=index, bit=bit)
                    if tried := self._try(flip, step):
                        return tried
        return None

    def _try(self, flip: Flip, step: int) -> ProvenFlip | None:
        """The flip with its values, where the rows of a replay with it are the recorded ones."""
        session = self.session
        session.restore(self.states[step])
        before, after = _flip(_tensor(session, flip), flip)
        while session.step_index <= self.step:
            replayed = session.run_step(check_state=False)
            if replayed.log is None or session.departure(replayed) is not None:
                return None
        shape = _tensor(session, flip).shape
        element = tuple(int(i) for i in torch.unravel_index(torch.tensor(flip.index), shape))
        return ProvenFlip(flip=flip, step=step, element=element, before=before, after=after)

    def _differing(self) -> list[tuple[str, str, int]]:
        """(parameter, key, index) of what differs most in the first saved state after the step."""
        session = self.session
        later = [i for i in session.run.checkpoints if self.step <= i.step <= self.step + LATER]
        if not later:
            return []
        try:
            saved = session.saved(later[0])
        except InputError:
            return []
        session.restore(self.states[self.step])
        while session.step_index < later[0].step:
            session.run_step(check_state=False)
        return most_different(saved, session)


def flips_to(parameters: Sequence[tuple[str, Tensor]], wanted: str) -> Iterator[Flip]:
    """The flips of one bit that give the wanted digest; high bits, which do harm, come first."""
    sums = param_sums(parameters)
    left = SEARCHED
    integers = [_integers(parameter.detach()) for _, parameter in parameters]
    for bit in reversed(range(64)):
        for which, (name, parameter) in enumerate(parameters):
            if bit >= 8 * parameter.element_size() or parameter.is_complex():
                continue
            flipped = (integers[which] ^ _mask(integers[which], bit)).to(torch.int64)
            changes = (flipped - integers[which].to(torch.int64)).tolist()
            left -= len(changes)
            if left < 0:
                return
            own = sums[which]
            for index, change in enumerate(changes):
                sums[which] = own + change * (2 * index + 1)
                if digest_of_sums(sums) == wanted:
                    yield Flip(parameter=name, key="", index=index, bit=bit)
            sums[which] = own


def most_different(saved: Mapping[str, Any], session: Session) -> list[tuple[str, str, int]]:
    """The elements in which a saved state is furthest from the replay's, against their tensor."""
    found: list[tuple[float, str, str, int]] = []
    for parameter, key, theirs, ours in _pairs(saved, session):
        if ours.shape != theirs.shape or not ours.is_floating_point() or not ours.numel():
            continue
        gaps = (theirs.to(ours.device).double() - ours.double()).abs().flatten()
        if not torch.isfinite(gaps).all():
            continue
        largest, places = gaps.topk(min(MOST_ELEMENTS, gaps.numel()))
        size = float(ours.double().abs().max()) or 1.0
        found += [
            (gap / size, parameter, key, index)
            for gap, index in zip(largest.tolist(), places.tolist(), strict=True)
            if gap > 0
        ]
    found.sort(key=lambda entry: -entry[0])
    return [(parameter, key, index) for _, parameter, key, index in found[:MOST_ELEMENTS]]


def _pairs(saved: Mapping[str, Any], session: Session) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """(parameter, key, saved tensor, the replay's) of weights, buffers and optimizer states."""
    model = session.model
    names = {id(p): name for name, p in model.named_parameters()}
    for name, ours in model.state_dict().items():
        theirs = saved["model"].get(name)
        if isinstance(theirs, Tensor):
            yield name, "" if name in dict(model.named_parameters()) else BUFFER, theirs, ours
    for entry, optimizer in zip(saved["optimizers"], session.training.optimizers, strict=False):
        owners = [p for group in optimizer.param_groups for p in group["params"]]
        for place, owner in enumerate(owners):
            theirs_of = entry["state"].get(place, {})
            for key, ours in optimizer.state.get(owner, {}).items():
                theirs = theirs_of.get(key)
                if isinstance(ours, Tensor) and isinstance(theirs, Tensor) and ours.dim():
                    yield names.get(id(owner), "?"), str(key), theirs, ours


def _tensor(session: Session, flip: Flip) -> Tensor:
    """What the flip is in, in the session's training."""
    model = session.model
    if flip.key == BUFFER:
        return model.get_buffer(flip.parameter)
    parameter = model.get_parameter(flip.parameter)
    if not flip.key:
        return parameter.detach()
    for optimizer in session.training.optimizers:
        if parameter in optimizer.state:
            state: Tensor = optimizer.state[parameter][flip.key]
            return state
    raise KeyError(flip.name)


def _flip(tensor: Tensor, flip: Flip) -> tuple[float, float]:
    """Flip the bit in place; the element's value before and after."""
    flat = tensor.view(-1)
    before = float(flat[flip.index])
    bits = flat.view(_BITS[tensor.element_size()])
    bits[flip.index] ^= _mask(bits, flip.bit)
    return before, float(flat[flip.index])


def _mask(bits: Tensor, bit: int) -> int:
    """An integer of the tensor's dtype with that one bit."""
    signed = bits.dtype != torch.uint8 and bit == 8 * bits.element_size() - 1
    return -(1 << bit) if signed else 1 << bit


def _integers(value: Tensor) -> Tensor:
    """The bit patterns, flattened."""
    if value.is_complex():
        value = torch.view_as_real(value)
    return value.contiguous().view(_BITS[value.element_size()]).flatten()
