"""Where an operator was called from, read off the Python stack: phase, module and source line.

Nothing is patched: the frames of torch's own optimizer, scaler, clip and scheduler files say which
part of the step runs, and so does a method of one of the training's own parts (an optimizer or an
average that the user wrote). The first argument of a frame that is a module says whose forward
it is.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

import torch
from torch import nn


class Phase(StrEnum):
    """The parts of a training step, in textbook order."""

    INPUT = "input"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UNSCALE = "unscale"
    CLIP = "clip"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    EMA = "ema"
    OUTSIDE = "outside"


@dataclass(frozen=True)
class CallSite:
    """Where a call came from.

    Attributes:
        phase: the part of the step, as far as the stack tells; LOSS where it tells nothing.
        module: name of the innermost module in whose forward the call is; empty for none or root.
        in_module: is the call inside any module's forward?
        source_line: ``file.py:12  code`` of the innermost line that is the user's own.
        known: does the stack tell the phase?
        stack: file and line of the innermost frames that are the user's own, innermost first.
        within: how many of them a backward node itself runs: a custom function's, a hook's.
    """

    phase: Phase
    module: str
    in_module: bool
    source_line: str
    known: bool = True
    stack: tuple[tuple[str, int], ...] = ()
    within: int = 0

    def entered_from(self, inner: CallSite) -> CallSite:
        """This site with the user's lines in front that the backward of its node ran."""
        if not inner.within:
            return self
        stack = (*inner.stack[: inner.within], *self.stack)[:_FRAMES]
        return replace(self, source_line=describe_line(*stack[0]), stack=stack)

    @property
    def traceback(self) -> tuple[str, ...]:
        """The user's lines that led there, innermost last."""
        return tuple(describe_line(path, line) for path, line in reversed(self.stack))


@dataclass(frozen=True)
class Parts:
    """Who is who in a training, by ``id``.

    Attributes:
        modules: names of the model's modules.
        phases: the phase in which a method of this object runs: an optimizer, an average.
    """

    modules: Mapping[int, str]
    phases: Mapping[int, Phase] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizers: Iterable[Any] = (),
        schedulers: Iterable[Any] = (),
        ema: Any = None,
    ) -> Parts:
        """The parts of one training."""
        phases = {id(o): Phase.OPTIMIZER for o in optimizers}
        phases |= {id(s): Phase.SCHEDULER for s in schedulers}
        if ema is not None:
            phases[id(ema)] = Phase.EMA
        return cls({id(m): name for name, m in model.named_modules()}, phases)


_PHASE_OF_FILE: tuple[tuple[str, Phase], ...] = (
    ("torch/nn/utils/clip_grad.py", Phase.CLIP),
    ("forensics/record/clipping.py", Phase.CLIP),
    ("torch/optim/lr_scheduler.py", Phase.SCHEDULER),
    ("torch/optim/swa_utils.py", Phase.EMA),
    ("forensics/record/ema.py", Phase.EMA),
    ("torch/optim/", Phase.OPTIMIZER),
)
_SCHEDULER_COUNTS = "wrapper"
"""What a scheduler puts around its optimizer's ``step``, to count the calls."""
_UNSCALE_FUNCTIONS = frozenset({"unscale_", "_unscale_grads_"})
_HOME = Path(__file__).resolve().parents[2].as_posix() + "/"
_MACHINERY = (
    Path(torch.__file__).resolve().parent.as_posix() + "/",
    *(f"{_HOME}{part}/" for part in ("record", "replay", "runlog")),
)
_TRAINERS = tuple(
    f"-packages/{part}"
    for part in (
        "accelerate/",
        "lightning/fabric/",
        "lightning/pytorch/",
        "pytorch_lightning/",
        "transformers/trainer",
    )
)
"""What stands between a trainer's loop and the user's lines."""
_STANDARD = Path(linecache.__file__).resolve().parent.as_posix() + "/"
_RECIPES = tuple(f"{_HOME}record/{part}" for part in ("faults/", "models.py", "healthy.py"))
"""Ours too, but they stand for a user's own code."""
_TRACER = f"{_HOME}replay/tracing/step_trace.py"
_FRAMES = 6
"""Frames of the user's that are told."""
_ENGINE = "_engine_run_backward"
"""The function of torch that runs backward: what is above it on the stack is another matter."""


def call_site(parts: Parts, depth: int = 1, *, in_backward: bool = False) -> CallSite:
    """The call site of the caller's caller.

    Args:
        parts: who is who.
        depth: frames to leave out at the top.
        in_backward: the call comes from a backward node: only frames of what the node itself
            calls (a recomputed forward) may name a module, not those that called ``backward()``.
    """
    return site_of(frames_from(sys._getframe(depth)), parts, in_backward=in_backward)


def frames_from(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """A frame and its callers, innermost first, each with its line."""
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def site_of(
    frames: Iterable[tuple[FrameType, int]], parts: Parts, *, in_backward: bool = False
) -> CallSite:
    """The call site that a stack describes, innermost frame first."""
    phase: Phase | None = None
    module: str | None = None
    stack: list[tuple[str, int]] = []
    beyond, within = False, 0
    for frame, line in frames:
        path = PurePath(frame.f_code.co_filename).as_posix()
        if path == _TRACER:
            break  # whoever called for the trace is no part of the training
        beyond = beyond or (in_backward and frame.f_code.co_name == _ENGINE)
        owner = _owner(frame)
        part = _phase_of(path, frame.f_code.co_name)
        if part is Phase.OPTIMIZER and stack:
            part = None  # what torch's optimizers call of the user's is a closure: the forward
        elif part is None:
            part = parts.phases.get(id(owner))
        phase = phase or part
        if module is None and not beyond and isinstance(owner, nn.Module):
            module = parts.modules.get(id(owner))
        if len(stack) < _FRAMES and is_users(path):
            stack.append((path, line))
            within += in_backward and not beyond
    known = phase is not None or module is not None
    if phase is None:
        phase = Phase.LOSS if module is None else Phase.FORWARD
    source = describe_line(*stack[0]) if stack else ""
    return CallSite(phase, module or "", module is not None, source, known, tuple(stack), within)


def _phase_of(path: str, function: str) -> Phase | None:
    for part, phase in _PHASE_OF_FILE:
        if part in path:
            counts = phase is Phase.SCHEDULER and function == _SCHEDULER_COUNTS
            return None if counts else phase
    if path.endswith("torch/amp/grad_scaler.py") and function in _UNSCALE_FUNCTIONS:
        return Phase.UNSCALE
    return None


def _owner(frame: FrameType) -> Any:
    """The object whose method a frame runs; None where it runs a plain function.

    A loss that takes the model as its first argument is none of the model's methods.
    """
    code = frame.f_code
    if code.co_argcount == 0 or not code.co_varnames:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return first if hasattr(type(first), code.co_name) else None


def is_users(path: str) -> bool:
    """Is this file the user's own (or a library's), rather than torch's, Python's or ours?"""
    if path.startswith("<"):
        return False
    if path.startswith(_STANDARD) and "-packages/" not in path:
        return False
    if "-packages/" in path and any(part in path for part in _TRAINERS):
        return False
    return not path.startswith(_MACHINERY) or path.startswith(_RECIPES)


def describe_line(path: str, line: int) -> str:
    """``file.py:12  code``."""
    code = linecache.getline(path, line).strip()
    return f"{PurePath(path).name}:{line}  {code}".strip()
