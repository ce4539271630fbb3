"""Gradients that a skipped step leaves behind: non-finite, they spoil every step after it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from forensics.record.parameters import tracked_parameters
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session
from forensics.replay.tracing.tensor_stats import is_float, nonfinite_kind


def kept_note(session: Session, before: MemoryState) -> str:
    """A sentence where the next step begins with this one's non-finite gradients; else empty.

    Two steps are run; the session is left after them.

    Args:
        session: anywhere.
        before: the state just before the bad step.
    """
    session.restore(before)
    session.run_step(check_state=False)
    named = tracked_parameters(session.training.model, session.training.optimizers)
    bad = {name: p for name, p in named if _is_bad(p.grad)}
    if not bad:
        return ""
    kept: dict[str, None] = {}
    handles = [p.register_hook(_looking(name, p, kept)) for name, p in bad.items()]
    try:
        session.run_step(check_state=False)
    finally:
        for handle in handles:
            handle.remove()
    if not kept:
        return ""
    return (
        f"the non-finite gradients of step {before.step:,} are still there as backward begins in "
        f"step {before.step + 1:,} ({next(iter(kept))} and {len(kept) - 1:,} more): call "
        "zero_grad() in skipped steps, too"
    )


def _looking(name: str, parameter: Tensor, kept: dict[str, None]) -> Callable[[Tensor], None]:
    def look(gradient: Tensor) -> None:
        del gradient
        if _is_bad(parameter.grad):
            kept.setdefault(name)

    return look


def _is_bad(gradient: Tensor | None) -> bool:
    return gradient is not None and is_float(gradient) and bool(nonfinite_kind(gradient))
