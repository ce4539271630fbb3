"""What is told about the parameters: small immutable values that every renderer takes."""

from __future__ import annotations

from forensics.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One parameter, or one layer's parameters together, at one snapshot; NaN where unknown.

    Attributes:
        name: of the parameter or layer.
        grad_l2: gradient norm before the clip.
        share: of the squared global gradient norm.
        growth: gradient norm over its own past baseline.
        value_l2: norm of the values.
        update_ratio: norm of the update over that of the values.
        nonfinite: non-finite elements of gradient and value.
        parameters: how many there are in it.
    """

    name: str
    grad_l2: float
    share: float
    growth: float
    value_l2: float
    update_ratio: float
    nonfinite: int
    parameters: int = 1


@dataclass(frozen=True, kw_only=True)
class Mover:
    """A parameter that has left its own baseline.

    Attributes:
        name: of the parameter.
        since: first step from which on it stays away.
        growth: how far it has gone at the snapshot looked at.
    """

    name: str
    since: int
    growth: float


@dataclass(frozen=True, kw_only=True)
class FirstBad:
    """The first parameter that went non-finite, and what brackets it.

    Attributes:
        step: of the snapshot.
        name: the one nearest the origin, in the order in which gradients arrive.
        what: ``gradient`` or ``weight``.
        elements: non-finite elements in it; 0 where only the name is known.
        bad: how many parameters are bad in that step.
        total: of how many.
        finite_before: the still-finite one whose gradient arrived just before, or empty.
        finite_after: the first still-finite one that arrived after it, or empty.
        origin: where a bad gradient was born, a sentence; empty for a weight.
    """

    step: int
    name: str
    what: str
    elements: int
    bad: int
    total: int
    finite_before: str
    finite_after: str
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class BadState:
    """The first non-finite tensor beside the parameters: a buffer, EMA value or optimizer state.

    Attributes:
        step: of the first snapshot that shows it.
        kind: ``buffer``, ``ema`` or ``optimizer``.
        name: of the tensor.
        finite_at: the snapshot before it, where steps lie between the two, else None.
    """

    step: int
    kind: str
    name: str
    finite_at: int | None = None

    def sentence(self) -> str:
        """``buffer bn.running_var is non-finite at step 40, still finite at step 30``."""
        still = "" if self.finite_at is None else f", still finite at step {self.finite_at:,}"
        return f"{self.kind} {self.name} is non-finite at step {self.step:,}{still}"


@dataclass(frozen=True, kw_only=True)
class ParamSeries:
    """One parameter over time; every tuple has one entry a step, NaN where unknown."""

    name: str
    steps: tuple[int, ...]
    grad_l2: tuple[float, ...]
    growth: tuple[float, ...]
    value_l2: tuple[float, ...]
    update_ratio: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ParamStory:
    """What the snapshots tell about the parameters.

    Attributes:
        path: of the run.
        snapshots: how many there are.
        first_step: of the first snapshot.
        last_step: of the last.
        parameters: how many parameters are looked at.
        pattern: the glob they were chosen by, or empty.
        step: the snapshot looked at.
        asked: the step asked for, or None.
        no_gradient: why the snapshot that was asked for is not the one looked at, a clause: it has
            no gradient; or empty.
        overflowed: the snapshot looked at is one of those that ``routine`` counts.
        grad_l2: gradient norm of all parameters (chosen or not) at that snapshot.
        usual_growth: growth of the median parameter there.
        top: the largest by gradient norm, non-finite ones first.
        movers: those away from their baseline there, by the step they left it.
        first_bad: the first non-finite parameter, or None.
        routine: snapshots whose non-finite gradients a loss scaler dealt with.
        bad_state: the first non-finite buffer, EMA value or optimizer state, or None.
        profile: one entry a layer, in network order.
        series: the chosen parameters over time, where few were chosen.
    """

    path: str
    snapshots: int
    first_step: int
    last_step: int
    parameters: int
    pattern: str
    step: int
    asked: int | None
    no_gradient: str = ""
    overflowed: bool = False
    grad_l2: float
    usual_growth: float
    top: tuple[Standing, ...]
    movers: tuple[Mover, ...]
    first_bad: FirstBad | None
    routine: int
    bad_state: BadState | None
    profile: tuple[Standing, ...]
    series: tuple[ParamSeries, ...]
