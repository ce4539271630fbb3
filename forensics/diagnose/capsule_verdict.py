"""What the replay of a capsule came to: plain values that renderers print."""

from __future__ import annotations

from forensics.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class FaultFacts:
    """What a bad step does.

    Attributes:
        place: where it goes bad: ``loss``, ``grad``, ``exception:ValueError`` …; empty for a
            sound step, and for a fault of what was applied.
        kind: of the fault, as in a bisection's result; empty where no trace could tell.
        phase: of the origin.
        operator: of the origin.
        module: of the origin.
        autograd_node: of the origin.
        parameter: nearest the origin.
        loss: what the step returned; None where it raised.
        exception: what it raised, or empty.
        summary: one sentence with the numbers.
        source_line: the user's own line.
    """

    place: str = ""
    kind: str = ""
    phase: str = ""
    operator: str = ""
    module: str = ""
    autograd_node: str = ""
    parameter: str = ""
    loss: float | None = None
    exception: str = ""
    summary: str = ""
    source_line: str = ""

    def told(self) -> str:
        """What the step does, in one clause."""
        if self.summary:
            return self.summary.rstrip(".")
        if self.exception:
            return f"it raises {self.exception}"
        if not self.place:
            return "it is sound"
        return f"{_WHERE.get(self.place, f'the {self.place}')} is not finite"


_WHERE = {"grad": "a gradient", "param": "a parameter", "norm": "the gradient norm"}


@dataclass(frozen=True, kw_only=True)
class CapsuleVerdict:
    """What the replay of a capsule came to.

    Attributes:
        path: of the capsule.
        run: that it was cut out of.
        step: that was replayed.
        samples: indices of the samples that it holds; empty where it holds the whole batch.
        batch_size: samples of the recorded step.
        confirmed: it goes bad in the same place, by the same operator.
        expected: what it was written for.
        found: what it does here.
        differences: what is otherwise, a clause each; there may be some where it is confirmed.
        notes: what differs from the recording's machine, a sentence each.
    """

    path: str
    run: str
    step: int
    samples: tuple[int, ...]
    batch_size: int
    confirmed: bool
    expected: FaultFacts
    found: FaultFacts
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def answer(self) -> str:
        """The verdict in one sentence."""
        word = "confirmed" if self.confirmed else "not confirmed"
        return f"{word}: in step {self.step:,} {self.found.told()}."

    def batch(self) -> str:
        """Which samples it holds."""
        if not self.samples:
            return f"all {self.batch_size:,}"
        shown = ", ".join(map(str, self.samples[:8]))
        more = " …" if len(self.samples) > 8 else ""
        return f"{shown}{more} of {self.batch_size:,}"
