"""Where a step raised: the public function that refused, the module, and the user's line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

import torch

from forensics.record.assembly import shortened
from forensics.replay.tracing.call_site import Parts, Phase, site_of
from forensics.replay.tracing.tensor_stats import TensorStats

_TORCH = Path(torch.__file__).resolve().parent.as_posix() + "/"
_VALUES = re.compile(r"\b(nans?|infs?|non-?finite|infinite|infinity)\b|invalid values", re.I)
"""How an exception says that a value was at fault."""
_CHECKED = re.compile(r"(?:torch\.)?(linalg\.\w+):")
"""How the check of a linear solver names it."""
_WRAPPERS = frozenset({"forward", "wrapper", "decorate_context"})


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception that ended a step.

    Attributes:
        message: ``Type: first line``.
        function: the innermost public function of torch on the stack, such as ``F.batch_norm`` or
            ``GradScaler.unscale_``; the operator where torch itself shows no frame; or the type.
        phase: where the step was.
        module: in whose forward; empty for none.
        source_line: the user's line.
        of_values: its text speaks of values that are not finite, or invalid.
        inputs: the floating inputs of the operator that raised.
        by_user: a ``raise`` or ``assert`` of the user's own, rather than a refusal of torch.
        traceback: ``file.py:12  code`` of every line that is the user's, innermost last.
    """

    message: str
    function: str
    phase: Phase
    module: str
    source_line: str
    by_user: bool = False
    inputs: tuple[TensorStats, ...] = ()
    of_values: bool = False
    traceback: tuple[str, ...] = ()


def describe_raised(error: BaseException, parts: Parts, operator: str = "") -> Raised:
    """Read the traceback of what a step raised.

    Args:
        error: with its traceback.
        parts: who is who in the training.
        operator: the dispatched operator that raised, if one did.
    """
    elsewhere = getattr(error, "raised_elsewhere", None)
    if isinstance(elsewhere, Raised):  # by another rank, which has read its own traceback
        return elsewhere
    frames = _frames(error.__traceback__)
    inner = frames[::-1]
    site = site_of(inner, parts, in_backward=_in_backward(frames))
    function = next((name for frame, _ in inner if (name := _public_name(frame))), "")
    if not function or _called_below(inner) or (operator and _in_backward(frames)):
        function = _spoken(operator, error) or function or type(error).__name__
    phase = site.phase
    if _in_backward(frames) and not site.in_module:
        phase = Phase.BACKWARD
    elif not site.known and function.startswith("GradScaler."):
        phase = Phase.OPTIMIZER if function.endswith(".step") else Phase.UNSCALE
    lines = [line for pair in frames if (line := site_of([pair], parts).source_line)]
    text = str(error).strip().splitlines()
    return Raised(
        message=f"{type(error).__name__}: {shortened(text[0]) if text else ''}".rstrip(": "),
        function=function,
        phase=phase,
        module=site.module,
        source_line=site.source_line,
        of_values=bool(_VALUES.search(str(error))),
        by_user=not operator and _called_below(inner),
        traceback=tuple(lines),
    )


def _spoken(operator: str, error: BaseException) -> str:
    """An operator's name; where it is a private check of torch's, the function it checks for."""
    said = _CHECKED.match(str(error))
    return f"torch.{said[1]}" if said and "_linalg_check" in operator else operator


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """From the frame that caught it down to the one that raised it."""
    found = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found


def _in_backward(frames: list[tuple[FrameType, int]]) -> bool:
    return any(frame.f_code.co_name == "_engine_run_backward" for frame, _ in frames)


def _called_below(inner: list[tuple[FrameType, int]]) -> bool:
    """Is the innermost frame that counts the user's: did an operator raise that it called?"""
    for frame, _ in inner:
        path = frame.f_code.co_filename
        if "/forensics/replay/" in path or "_python_dispatch" in path:
            continue
        return not path.startswith(_TORCH) or path.endswith(("torch/_ops.py", "torch/overrides.py"))
    return False


def _public_name(frame: FrameType) -> str:
    """``F.batch_norm``, ``GradScaler.unscale_``: as users write it; empty for anything private."""
    code = frame.f_code
    path, name = code.co_filename, code.co_name
    if not path.startswith(_TORCH) or name.startswith(("_", "<")) or name in _WRAPPERS:
        return ""
    if path.endswith(("torch/_ops.py", "torch/overrides.py", "torch/_python_dispatch.py")):
        return ""
    if path.endswith("torch/nn/functional.py"):
        return f"F.{name}"
    qualified = code.co_qualname.replace(".<locals>", "")
    return qualified if "." in qualified else f"{_package(path)}.{name}"


def _package(path: str) -> str:
    """``torch.nn.utils`` for a file in it."""
    parts = Path(path.removeprefix(_TORCH)).parts[:-1]
    return ".".join(("torch", *parts))
