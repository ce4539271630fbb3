"""What a loop of somebody else's was seen to do in another order than it should, counted."""

from __future__ import annotations

from collections.abc import Mapping

REAPPLIED = "reapplied"
LATE_CLIP = "late_clip"
LATE_GRADIENTS = "late_gradients"
REMEASURED = "remeasured"
UNMEASURED = "unmeasured"
UNENDED = "unended"
UNSTEPPED = "unstepped"
BYPASSED = "bypassed"
UNUPDATED = "unupdated"
UPDATED_TWICE = "updated_twice"
IN_TURN = "in_turn"
ONE_LOSS = "one_loss"

KINDS: Mapping[str, str] = {
    REAPPLIED: "an optimizer was stepped again with the very same gradients",
    LATE_CLIP: "the gradients were clipped after the optimizer had used them",
    LATE_GRADIENTS: "gradients() was called after the optimizer had stepped",
    REMEASURED: "gradients() was called again before the optimizer stepped",
    UNMEASURED: "the optimizer stepped and gradients() was not called",
    UNENDED: "another step began before end_step() was called",
    UNSTEPPED: "end_step() was called and no optimizer had stepped, though all was finite",
    BYPASSED: "the loss was scaled, and the optimizer stepped without the scaler",
    UNUPDATED: "the scaler was not updated after a step",
    UPDATED_TWICE: "the scaler was updated again without a step in between",
    IN_TURN: "optimizers stepped in turn, on losses of their own or now and then",
    ONE_LOSS: "backward ran several times for a step, and one loss was given",
}
"""What ``run.json`` counts under ``loop``, as ``KIND_steps`` and ``first_KIND``.

The last two are no faults: they tell what the loss of a row is.
"""


class LoopNotes:
    """Counts, per kind, in how many steps it was seen and in which first.

    Args:
        known: of the run so far, as ``run.json`` has it.
        first_step: what was first seen from this step on is being done again and forgotten.
    """

    def __init__(self, known: Mapping[str, int] | None = None, first_step: int = 0) -> None:
        self._count: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for kind in KINDS:
            count = (known or {}).get(f"{kind}_steps", 0)
            first = (known or {}).get(f"first_{kind}", 0)
            if count and first < first_step:
                self._count[kind], self._first[kind] = count, first

    def note(self, kind: str, step: int) -> bool:
        """Count a kind once for this step; True where it is the first of its kind."""
        if self._last.get(kind) == step:
            return False
        self._last[kind] = step
        first = kind not in self._count
        self._count[kind] = self._count.get(kind, 0) + 1
        self._first[kind] = min(step, self._first.get(kind, step))
        return first

    def count(self, kind: str) -> int:
        """In how many steps it was seen."""
        return self._count.get(kind, 0)

    def first(self, kind: str) -> int | None:
        """The first of them, or None."""
        return self._first.get(kind)

    def as_manifest(self) -> dict[str, int]:
        """For ``run.json``: empty where the loop is as it should be."""
        found: dict[str, int] = {}
        for kind in KINDS:
            if kind in self._count:
                found[f"{kind}_steps"] = self._count[kind]
                found[f"first_{kind}"] = self._first[kind]
        return found
