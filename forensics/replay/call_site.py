"""Where an operator was called from, read off the Python stack: phase, module and source line.

Nothing is patched: the frames of torch's own optimizer, scaler, clip and scheduler files say which
part of the step runs, and the first argument of a frame that is a module says whose forward it is.
"""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from types import FrameType

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
    """

    phase: Phase
    module: str
    in_module: bool
    source_line: str


_PHASE_OF_FILE: tuple[tuple[str, Phase], ...] = (
    ("torch/nn/utils/clip_grad.py", Phase.CLIP),
    ("forensics/record/clipping.py", Phase.CLIP),
    ("torch/optim/lr_scheduler.py", Phase.SCHEDULER),
    ("torch/optim/swa_utils.py", Phase.EMA),
    ("forensics/record/ema.py", Phase.EMA),
    ("torch/optim/", Phase.OPTIMIZER),
)
_UNSCALE_FUNCTIONS = frozenset({"unscale_", "_unscale_grads_"})
_OURS = ("/torch/", "/forensics/record/", "/forensics/replay/", "/forensics/runlog/")


def call_site(names: dict[int, str], depth: int = 1) -> CallSite:
    """The call site of the caller's caller.

    Args:
        names: module names by ``id(module)``.
        depth: frames to leave out at the top.
    """
    phase: Phase | None = None
    module: str | None = None
    source = ""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        path = PurePath(frame.f_code.co_filename).as_posix()
        phase = phase or _phase_of(path, frame.f_code.co_name)
        if module is None:
            module = _module_of(frame, names)
        if not source and _is_users(path):
            source = _describe(path, frame.f_lineno)
        frame = frame.f_back
    if phase is None:
        phase = Phase.LOSS if module is None else Phase.FORWARD
    return CallSite(phase, module or "", module is not None, source)


def _phase_of(path: str, function: str) -> Phase | None:
    for part, phase in _PHASE_OF_FILE:
        if part in path:
            return phase
    if path.endswith("torch/amp/grad_scaler.py") and function in _UNSCALE_FUNCTIONS:
        return Phase.UNSCALE
    return None


def _module_of(frame: FrameType, names: dict[int, str]) -> str | None:
    """The name of the module whose method this frame runs, if it is one of the model's."""
    code = frame.f_code
    if code.co_argcount == 0 or not code.co_varnames:
        return None
    first = frame.f_locals.get(code.co_varnames[0])
    return names.get(id(first)) if isinstance(first, nn.Module) else None


def _is_users(path: str) -> bool:
    if path.startswith("<"):
        return False
    own = any(part in path for part in _OURS) and "/faults/" not in path
    return not own and "/importlib/" not in path and "/contextlib.py" not in path


def _describe(path: str, line: int) -> str:
    code = linecache.getline(path, line).strip()
    return f"{PurePath(path).name}:{line}  {code}".strip()
