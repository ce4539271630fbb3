"""Which changes there are to try, and what follows from each."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.replay.rerun.changes import Changes
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session
from forensics.replay.tracing.tensor_stats import float_tensors

FP32, BF16, FP64 = "fp32", "bf16", "fp64"
SCALE_ONE = "loss scale 1"
WITHOUT_SAMPLES = "without the guilty samples"
WITHOUT_BATCH = "without the batch"
HALF_RATE = "half the learning rate"
TENTH_RATE = "a tenth of the learning rate"
CLIP = "clip at"
"""How the changes are called."""

_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_TYPICAL_OF = 200
"""Rows before the root whose median norm is the threshold of a clip: about what it is usually set
to."""
_FIRST = 5
"""Rows that stand for it where it grew from the first step on."""
_SAME_NORM = 1e-4
"""Relative: what the epsilon of a clip and rounding come to is less."""
_CUSTOMARY = 1.0
"""The most that a clip is tried at there: those rows may be huge already. The default of Hugging
Face's Trainer, and what nanoGPT and most recipes of language models clip at."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A change that is going to be tried.

    Attributes:
        change: what it is called.
        changes: how it is brought about.
        until: last step to replay.
        skip_first: leave the whole first step out.
        finite: what follows when nothing goes bad.
        bad: what follows when the step goes bad all the same.
        refused: why it cannot be brought about; then it is not tried.
        needless: not tried where one of these changes was finite.
    """

    change: str
    changes: Changes
    until: int
    skip_first: bool = False
    finite: str = ""
    bad: str = ""
    refused: str = ""
    needless: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AsItWas:
    """The bad step, replayed as recorded.

    Attributes:
        step: what it came to.
        seconds: what it took.
        autocast: the half precisions that an autocast was entered with.
        weights: the half precisions that parameters are in.
        casts: the half precisions that the step turns to by itself, where neither is.
    """

    step: ReplayedStep
    seconds: float
    autocast: frozenset[str]
    weights: frozenset[str]
    casts: frozenset[str] = frozenset()

    @property
    def precisions(self) -> str:
        """What it was computed in."""
        return " and ".join(sorted(self.autocast | self.weights)) or FP32


def as_it_was(session: Session, before: MemoryState) -> AsItWas:
    """Replay the step as recorded, and look at what it is computed in."""
    session.restore(before)
    weights = {_HALVES[p.dtype] for p in session.model.parameters() if p.dtype in _HALVES}
    seen: set[str] = set()
    entered: Any = autocast.__enter__

    def enter(self: Any) -> Any:
        if self._enabled and self.fast_dtype in _HALVES:
            seen.add(_HALVES[self.fast_dtype])
        return entered(self)

    autocast.__enter__ = enter  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        step = session.run_step()
    finally:
        autocast.__enter__ = entered  # type: ignore[method-assign]
    took = time.perf_counter() - began
    casts: set[str] = set()
    if not weights and not seen:
        session.restore(before)
        session.run_step(trace=_Casts(casts).wrap, check_state=False)
    return AsItWas(
        step=step,
        seconds=took,
        autocast=frozenset(seen),
        weights=frozenset(weights),
        casts=frozenset(casts),
    )


class _Casts(TorchDispatchMode):
    """Takes note of half precisions that come up."""

    def __init__(self, found: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def wrap(self, run: Callable[[], Any]) -> Any:
        """Run a step under this mode."""
        with self:
            return run()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        self._found |= {_HALVES[t.dtype] for t in float_tensors(out) if t.dtype in _HALVES}
        return out


def plans(
    session: Session, step: int, until: int, samples: Sequence[int], was: AsItWas
) -> Iterator[Plan]:
    """What there is to try at the bad step: precision (unless it raised), loss scale, data."""
    if not was.step.exception:
        yield from precisions(until, was)
    scale = was.step.log.scaler_scale if was.step.log is not None else 1.0
    if session.training.scaler.is_enabled() and scale != 1.0:
        yield Plan(
            change=SCALE_ONE,
            changes=Changes(loss_scale=1.0),
            until=until,
            finite=f"the loss scale of {scale:g} has a part in it",
            bad="not the scaler",
        )
    if samples:
        yield Plan(
            change=WITHOUT_SAMPLES,
            changes=Changes(drop={step: tuple(samples)}),
            until=until,
            finite="these samples set it off",
            bad="not these samples alone",
        )
    elif until > step:
        yield Plan(
            change=WITHOUT_BATCH,
            changes=Changes(),
            until=until,
            skip_first=True,
            finite="this batch, or what was drawn for it, sets it off",
            bad="not the data",
        )


def precisions(until: int, was: AsItWas) -> Iterator[Plan]:
    """A higher precision tells rounding from mathematics, bf16 range from rounding."""
    used, halves = was.precisions, was.autocast | was.weights
    refused = f"the parameters themselves are in {used}: autocast cannot turn them into bf16"
    refused = refused if was.weights else ""
    if halves:
        yield Plan(
            change=FP32,
            changes=Changes(precision=FP32, widen=bool(was.weights)),
            until=until,
            finite=f"{used} is too narrow or too coarse here",
            bad="not a precision problem",
        )
    if "fp16" in halves:
        yield Plan(
            change=BF16,
            changes=Changes(precision=BF16),
            until=until,
            finite="it is the range of fp16",
            refused=refused,
        )
    yield Plan(
        change=FP64,
        changes=Changes(precision=FP64),
        until=until,
        finite=f"the range or the rounding of {used}",
        bad=f"the step itself rounds to {' and '.join(sorted(was.casts))}"
        if was.casts
        else "mathematics, not rounding",
        needless=(FP32,),
    )


def early_plans(
    session: Session, root_step: int, first_bad_step: int, until: int
) -> Iterator[Plan]:
    """What there is to try from the root on: a lower rate, and a clip where nothing clips."""
    yield Plan(change=HALF_RATE, changes=Changes(lr_factor=0.5), until=until)
    if root_step < first_bad_step:
        less, needless = Changes(lr_factor=0.1), (HALF_RATE,)
        yield Plan(change=TENTH_RATE, changes=less, until=until, needless=needless)
    begin = max(0, root_step - _TYPICAL_OF)
    rows = [session.recorded(step) for step in range(begin, first_bad_step)]
    known = [row for row in rows if row is not None]
    if session.manifest.max_norm is not None or any(map(_was_clipped, known)):
        return  # it clips already
    measured = [row for row in known if math.isfinite(row.get("grad_l2_pre_clip", math.nan))]
    calm = [row["grad_l2_pre_clip"] for row in measured if row["step"] < root_step]
    first = [row["grad_l2_pre_clip"] for row in measured[:_FIRST]]
    usual = statistics.median(calm) if calm else min([*first, _CUSTOMARY])  # they grow already
    limit = float(f"{usual:.2g}") or _CUSTOMARY
    yield Plan(change=f"{CLIP} {limit:g}", changes=Changes(max_norm=limit), until=until)


def _was_clipped(row: Mapping[str, Any]) -> bool:
    """Did a clip change the norm? A loop may measure it, and not clip."""
    post = row.get("grad_l2_post_clip", math.nan)
    return bool(post < (1 - _SAME_NORM) * row.get("grad_l2_pre_clip", math.nan))
