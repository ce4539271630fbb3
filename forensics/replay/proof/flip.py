"""What changed from outside: the recorded state after a departure, against the replayed one.

A replay that is the record bit for bit up to a step, and sound where the record is not, was not
led astray by the program. What the next saved state holds that the replay does not have shows which
weight was hit: an exponent bit that flips changes a value by 2 to the power of a power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from forensics.errors import ForensicsError
from forensics.replay.proof.flip_proof import BUFFER, prove_flip
from forensics.replay.session import Session
from forensics.runlog.checkpoint_files import CheckpointInfo

FARTHEST = 1000
"""Steps after the departure up to which a saved state still tells: what was hit spreads."""
_OUTLIER = 1.0
"""Octaves by which a value must differ to be the one that was hit: training moves it by less."""
_NEAR = 0.05
"""Octaves by which later updates may have moved it away from an exact power."""
_EXPONENT_BITS = tuple(2.0**bit for bit in range(8))
_BEYOND = 1024.0
"""Octaves that stand for a value that is not finite any more."""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """The value that was changed.

    Attributes:
        name: of the parameter, buffer or optimizer state (``head.weight.exp_avg_sq``).
        index: of the element.
        recorded: what the saved state holds; where a bit is proven, the value with it flipped.
        replayed: what the replay has there.
        state: step of the saved state; where a bit is proven, the first step that computed with it.
        one_bit: the two differ by one bit of the exponent.
        owner: the parameter whose optimizer state ``name`` is; else empty.
        bit: with this one flipped (0 is the least) the replay is the record; None: not proven.
    """

    name: str
    index: tuple[int, ...]
    recorded: float
    replayed: float
    state: int
    one_bit: bool
    owner: str = ""
    bit: int | None = None


def find_hit(session: Session, departure_step: int) -> Hit | None:
    """Which value was changed: the bit that explains the record, else what stands out.

    Args:
        session: of the run; left anywhere.
        departure_step: the first row in which the replay is not the record.

    Returns:
        None where nothing explains the row, no state was saved near enough, or no value of it
        stands out.
    """
    return _proven(session, departure_step) or _standing_out(session, departure_step)


def _proven(session: Session, departure_step: int) -> Hit | None:
    proven = prove_flip(session, departure_step)
    if proven is None:
        return None
    return Hit(
        name=proven.flip.name,
        index=proven.element,
        recorded=proven.after,
        replayed=proven.before,
        state=proven.step,
        one_bit=True,
        owner=proven.flip.parameter if proven.flip.key not in ("", BUFFER) else "",
        bit=proven.flip.bit,
    )


def _standing_out(session: Session, departure_step: int) -> Hit | None:
    """Which value of the model was changed, as the first saved state after the departure tells."""
    info = _next_state(session, departure_step)
    if info is None:
        return None
    try:
        saved = session.saved(info).get("model")
    except ForensicsError:
        return None
    session.go_to(departure_step)
    while session.step_index < info.step:
        session.run_step(check_state=False)
    if not isinstance(saved, dict):
        return None
    replayed = session.model.state_dict()
    hits = [
        hit
        for name, value in replayed.items()
        if isinstance(other := saved.get(name), Tensor) and other.shape == value.shape
        if (hit := _hit(name, other, value, info.step)) is not None
    ]
    return max(hits, key=lambda hit: (hit.one_bit, _octaves_of(hit)), default=None)


def _next_state(session: Session, step: int) -> CheckpointInfo | None:
    later = (i for i in session.run.checkpoints if step <= i.step <= step + FARTHEST)
    return next(later, None)


def _hit(name: str, recorded: Tensor, replayed: Tensor, state: int) -> Hit | None:
    """The element that differs most, an exact exponent bit before any other."""
    if not recorded.is_floating_point() or not recorded.numel():
        return None
    was = recorded.detach().cpu().double().flatten()
    now = replayed.detach().cpu().double().flatten()
    octaves = (was.abs().log2() - now.abs().log2()).abs()
    octaves = torch.where(was.isfinite(), octaves.nan_to_num(0.0, posinf=0.0), _BEYOND)
    bits = torch.tensor(_EXPONENT_BITS, dtype=torch.float64)
    exact = ((octaves[:, None] - bits).abs() < _NEAR).any(dim=1) & (octaves > _OUTLIER - _NEAR)
    chosen = torch.where(exact, octaves + _BEYOND, octaves) if bool(exact.any()) else octaves
    at = int(chosen.argmax())
    if float(octaves[at]) < _OUTLIER - _NEAR:
        return None
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), recorded.shape))
    return Hit(
        name=name,
        index=index,
        recorded=float(was[at]),
        replayed=float(now[at]),
        state=state,
        one_bit=bool(exact[at]),
    )


def _octaves_of(hit: Hit) -> float:
    if not math.isfinite(hit.recorded) or not hit.recorded or not hit.replayed:
        return _BEYOND
    return abs(math.log2(abs(hit.recorded)) - math.log2(abs(hit.replayed)))
