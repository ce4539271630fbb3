"""What a bisection found: plain values that renderers print, and that ``bisect.json`` keeps."""

from __future__ import annotations

from enum import StrEnum

from forensics.frozen import dataclass


class BisectStatus(StrEnum):
    """How a bisection ended."""

    LOCATED = "located"
    NOT_BISECTABLE = "not-bisectable"
    HEALTHY = "healthy"
    PARTIAL = "partial"


class FaultKind(StrEnum):
    """What went wrong in the first bad step.

    ``applied`` is a fault with nothing non-finite in it: what was applied to the parameters is not
    what should have been. ``growth`` is an overflow at the end of a growth that began earlier.
    """

    NAN = "nan"
    INF = "inf"
    NORM_OVERFLOW = "norm-overflow"
    APPLIED = "applied"
    GROWTH = "growth"
    EXCEPTION = "exception"


class Persistence(StrEnum):
    """Does the damage, or the fault, still act after the step?

    Judged as if a guard had withheld the update of the bad step: what then still goes bad, or is
    still damaged, persists.
    """

    TRANSIENT = "transient"
    PERSISTENT = "persistent"
    UNKNOWN = "unknown"


REAL, EMULATED = "real", "emulated"
"""How the gradients of several ranks were reduced in a replay: by as many ranks, or by hand."""

_LEFT_BEHIND = frozenset({"parameter", "optimizer state", "buffer", "state"})
"""What a link of a chain calls that outlasts its step."""


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """One tensor in numbers.

    Attributes:
        dtype: such as ``float16``.
        shape: its size per dimension.
        absmax: largest magnitude among the finite elements; NaN where there is none.
        nan: elements that are NaN.
        inf: elements that are Inf.
        numel: elements in all.
        name: what it is, such as a parameter's name; empty for an operator's argument.
    """

    dtype: str
    shape: tuple[int, ...]
    absmax: float
    nan: int
    inf: int
    numel: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class ChainLink:
    """One stage on the way from the origin to the damage, in the order of the step.

    Attributes:
        phase: where it happened.
        what: an operator, ``loss``, ``gradient``, ``parameter`` …
        name: module, parameter or state it belongs to; may be empty.
        kind: ``nan``, ``inf`` or empty.
    """

    phase: str
    what: str
    name: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the fault came into the first bad step.

    Attributes:
        kind: see ``FaultKind``.
        phase: ``input``, ``forward``, ``loss``, ``backward``, ``unscale``, ``clip``,
            ``optimizer``, ``scheduler``, ``ema`` or ``outside``: where the operator ran.
        operator: dispatched name without overload and trailing ``_``, such as ``aten.log``;
            ``input``, ``param:NAME`` … for a bad leaf; ``clip``, ``lr_scheduler.step`` … for a
            fault of what was applied.
        autograd_node: the backward node that ran it, or whose forward it is; may be empty.
        module: as in ``named_modules()``; empty for the root.
        parameter: nearest the origin; empty for none.
        parameters: all that went bad, in gradient-arrival order.
        element: index of one guilty element, such as ``[3, 1]``; empty when unknown.
        source_line: ``file.py:12  code``: the user's own line.
        inputs: the operator's floating inputs.
        output: its first bad output.
        chain: from the origin to the damage.
        summary: one sentence with the numbers that prove it.
        traceback: the forward call of a failing backward node, innermost last; may be empty.
    """

    kind: FaultKind
    phase: str
    operator: str
    autograd_node: str = ""
    module: str = ""
    parameter: str = ""
    parameters: tuple[str, ...] = ()
    element: str = ""
    source_line: str = ""
    inputs: tuple[TensorFacts, ...] = ()
    output: TensorFacts | None = None
    chain: tuple[ChainLink, ...] = ()
    summary: str = ""
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What grew until something overflowed.

    Attributes:
        signal: such as ``grad_l2_pre_clip``, ``param_l2 of attn.q.weight``.
        since_step: the root step: the growth began here.
        until_step: the last step it was measured at.
        rate: factor per step, such as 1.004.
        first_value: at ``since_step``.
        last_value: at ``until_step``.
        cause: one clause: what began or was in force at ``since_step``, if it can be told.
    """

    signal: str
    since_step: int
    until_step: int
    rate: float
    first_value: float
    last_value: float
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckpointVerdict:
    """One saved state: its step, ``good``, ``bad``, ``untestable`` or ``untested``, and why."""

    step: int
    verdict: str
    reason: str = ""
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Departure:
    """The first row in which a replay is not the record.

    Attributes:
        step: of the row.
        column: the first column that differs.
        recorded: value in steps.csv.
        replayed: value of the replay.
    """

    step: int
    column: str
    recorded: float | str | None
    replayed: float | str | None


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One change, tried by replay.

    Attributes:
        change: in words, such as ``fp32`` or ``half the learning rate``.
        from_step: state it was tried from.
        until_step: last step that was replayed.
        finite: nothing went bad until then; None where it could not be tried.
        first_bad_step: the first step that did, or None.
        note: what follows from it, or why it could not be tried.
        stays: what steps are that are not bad, in words: ``finite``, or for a condition that was
            asked for such as ``loss at most 10``.
        comes_again: later steps that the same samples came again in, and were left out of, too.
    """

    change: str
    from_step: int
    until_step: int
    finite: bool | None = None
    first_bad_step: int | None = None
    note: str = ""
    stays: str = "finite"
    comes_again: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BisectionResult:
    """Everything that a bisection found; all renderers take this.

    Attributes:
        path: the run or the folder of saved states.
        status: how it ended.
        reason: why it is healthy, not bisectable or partial; what the search went by otherwise.
        first_bad_step: first step that is bad, or None.
        bad: what is bad in the row of that step, a clause; empty where its row shows nothing.
        root_step: where the cause began; equals ``first_bad_step`` unless something grew.
        origin: where in that step, or None where no replay could tell.
        growth: what grew, or None.
        samples: indices into the step's batch (micro-batches one after the other) that alone
            still go bad; empty where the batch is not to blame or was not tried.
        samples_note: one clause of what the indices alone do not say, such as that no single sample
            is to blame; may be empty.
        batch_size: samples in the step's batch; 0 when unknown. Of several ranks that of ``rank``.
        rank: the first rank whose own loss or gradient is bad, where several trained; else None.
        bad_ranks: all such ranks of that step, ascending.
        reduction: how the gradients of several ranks were reduced in the replay: ``real`` (by as
            many processes as trained) or ``emulated`` (by one process); empty for one rank.
        reproduces: does a replay from the same state go bad again; None where none was made.
        replays: how many replays of the bad step were made.
        raised: the bad step raised, which ended the run.
        terminated: of a partial answer: it was SIGTERM that ended it.
        persistence: see ``Persistence``.
        damage_stayed: the record shows that the bad step was taken, and nothing finite after it.
        faithful_until: last step up to which the replay equals the record; None without replay.
        departure: the first row that differs, or None.
        compared: rows compared.
        replayed_from: first step that was replayed on the way to the bad one; None without replay.
        replayed_until: last step of that way.
        tolerance: relative difference up to which a replayed row was taken as the recorded one; 0
            means the same bits.
        cross_device: replayed on another kind of device than it was recorded on.
        what_if: the changes that were tried.
        remedy: what to do, in sentences; proven ones say by what.
        checkpoints: every saved state that was looked at, ascending.
        bad_tensors: names of the first bad state's bad tensors, where health alone was judged.
        missing: what the saved states lack for a resume, a clause each.
        capsule: path of the capsule, or empty.
        capsule_bytes: what it takes on disk.
        next_command: one command line that can be pasted; may be empty.
        notes: what else the user must know, a sentence each.
    """

    path: str
    status: BisectStatus
    reason: str = ""
    first_bad_step: int | None = None
    bad: str = ""
    root_step: int | None = None
    origin: Origin | None = None
    growth: Growth | None = None
    samples: tuple[int, ...] = ()
    samples_note: str = ""
    batch_size: int = 0
    rank: int | None = None
    bad_ranks: tuple[int, ...] = ()
    reduction: str = ""
    reproduces: bool | None = None
    replays: int = 0
    raised: bool = False
    terminated: bool = False
    persistence: Persistence = Persistence.UNKNOWN
    damage_stayed: bool = False
    faithful_until: int | None = None
    departure: Departure | None = None
    compared: int = 0
    replayed_from: int | None = None
    replayed_until: int | None = None
    tolerance: float = 0.0
    cross_device: bool = False
    what_if: tuple[WhatIf, ...] = ()
    remedy: tuple[str, ...] = ()
    checkpoints: tuple[CheckpointVerdict, ...] = ()
    bad_tensors: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    capsule: str = ""
    capsule_bytes: int = 0
    next_command: str = ""
    notes: tuple[str, ...] = ()

    @property
    def damaged(self) -> bool:
        """Did the step leave something non-finite behind that the next steps found?"""
        links = self.origin.chain if self.origin is not None else ()
        left = any(link.what in _LEFT_BEHIND and link.kind for link in links)
        step = self.first_bad_step
        later = any(
            state.verdict == "bad" and step is not None and state.step > step
            for state in self.checkpoints
        )
        return left or later
