"""What a case is: a run, and what must, may and must not be said about it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run

EXACT = 2
"""Steps by which a sharp fault's first step may be off."""
SLOW = 0.05
"""Share of the rows by which the onset of a slow fault may be off."""


@dataclass(frozen=True)
class Expect:
    """A rule that must fire.

    Attributes:
        rule: its id.
        step: the first step it must name; None where any is right.
        slack: steps by which it may be off.
        subject: what the finding's subject must hold; empty where none is asked for.
        least: the least severity it must have.
        upto: a last acceptable first step beyond ``step``, for faults that build up to a point.
    """

    rule: str
    step: int | None = None
    slack: int = EXACT
    subject: str = ""
    least: Severity = Severity.INFO
    upto: int | None = None

    def at(self, step: int) -> bool:
        """Is this first step right?"""
        if self.step is None:
            return True
        return self.step - self.slack <= step <= max(self.step, self.upto or 0) + self.slack


@dataclass(frozen=True)
class Label:
    """What an experienced engineer would say.

    Attributes:
        roots: acceptable roots, each with its step; empty for a healthy run.
        must: rules that must fire, at which step.
        may: further rules that may be at warning or above (consequences of the fault).
        status: acceptable words of the verdict.
    """

    roots: tuple[Expect, ...] = ()
    must: tuple[Expect, ...] = ()
    may: frozenset[str] = frozenset()
    status: tuple[str, ...] = ("healthy",)

    @property
    def faulty(self) -> bool:
        """Is a fault planted?"""
        return "healthy" not in self.status

    @property
    def allowed(self) -> frozenset[str]:
        """Every rule that may be at warning or above."""
        return self.may | {e.rule for e in (*self.roots, *self.must)}

    def also(self, *may: str) -> Label:
        """The same label with further rules allowed."""
        return replace(self, may=self.may | set(may))


HEALTHY = Label()
"""Nothing at warning or above."""


def healthy(*must: Expect, status: tuple[str, ...] = ("healthy",)) -> Label:
    """A healthy run in which some rules must fire as an information."""
    return Label(must=must, status=status)


def fault(
    roots: str | Iterable[str],
    step: int,
    *must: Expect,
    slack: int = EXACT,
    may: Iterable[str] = (),
    upto: int | None = None,
    subject: str = "",
    undecided: bool = False,
) -> Label:
    """A faulty run: its equally right roots (all at one step), and what must and may be found.

    With one right root its rule must fire at that step too.
    """
    names = (roots,) if isinstance(roots, str) else tuple(roots)
    right = tuple(Expect(name, step, slack, subject, upto=upto) for name in names)
    own = right if len(right) == 1 else ()
    status = ("faulty", "undecided") if undecided else ("faulty",)
    return Label(right, (*own, *must), frozenset(may), status)


@dataclass(frozen=True)
class Case:
    """One log of the corpus."""

    name: str
    seed: int
    run: Run
    label: Label


Make = Callable[[np.random.Generator], tuple[Run, Label]]


@dataclass
class Corpus:
    """Named makers of cases; the same name and seed always make the same case."""

    makers: dict[str, Make] = field(default_factory=dict)

    def add(self, name: str) -> Callable[[Make], Make]:
        """Register a maker under a name."""

        def register(make: Make) -> Make:
            if name in self.makers:
                raise ValueError(f"two cases are called {name}")
            self.makers[name] = make
            return make

        return register

    def case(self, name: str, seed: int) -> Case:
        """Make one case."""
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        run, label = self.makers[name](rng)
        return Case(name, seed, run, label)


HEALTHY_CASES = Corpus()
FAULTY_CASES = Corpus()
