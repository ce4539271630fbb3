"""What a rule says and what a diagnosis is: small immutable values, printable without the run."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from forensics.frozen import dataclass

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from forensics.diagnose.excerpts import Excerpt
    from forensics.runlog.run import Run


class Severity(IntEnum):
    """How bad: ``info`` is what a healthy run does now and then; the rest is not healthy."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """The severity in lower case, as text and JSON print it."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A few points of one signal that show what a finding claims.

    Attributes:
        signal: column or derived series, such as ``loss`` or ``grad_l2_pre_clip / median``.
        steps: the steps, few enough to print (at most about 12).
        values: one value a step.
        threshold: the limit they are held against, if any.
        places: what each value is of, where that is not its step (``layer 11``); else empty.
    """

    signal: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    threshold: float | None = None
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One episode of one fault.

    Attributes:
        rule: id of the rule.
        severity: how bad it is.
        message: one sentence: what happened, with numbers and units.
        first_step: first step of the episode.
        last_step: last step; equal to the table's last step when it lasts to the end.
        earliest_step: set where only sparse snapshots or checkpoints date the start: it lies
            between this step and ``first_step``, the first one at which it was seen. None: exact.
        subject: parameter, module or file it is about; empty for the whole run.
        evidence: the points behind it.
        cause: what usually causes it, fitted to what this run shows.
        remedy: what to do, fitted to what this run shows.
        excerpts: the log around it, for sparklines; no part of what is told or compared.
    """

    rule: str
    severity: Severity
    message: str
    first_step: int
    last_step: int
    subject: str = ""
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    remedy: str = ""
    earliest_step: int | None = None
    excerpts: tuple[Excerpt, ...] = field(default=(), repr=False, compare=False)

    @property
    def begins(self) -> int:
        """The earliest step at which it may have begun."""
        return self.first_step if self.earliest_step is None else self.earliest_step


class Outcome(StrEnum):
    """What became of one rule on one run."""

    FIRED = "fired"
    CLEAR = "clear"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """The outcome of one rule; ``reason`` says why it was skipped or how it failed."""

    rule: str
    outcome: Outcome
    reason: str = ""


class Status(StrEnum):
    """The verdict in one word."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNDECIDED = "undecided"
    INSUFFICIENT_DATA = "insufficient-data"


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One line of the chain of events: when, what, and the numbers."""

    when: str
    title: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One root cause and what followed from it.

    Attributes:
        status: healthy, faulty, undecided or insufficient data.
        summary: one or two sentences, the answer at three in the morning.
        root: index into the findings, or None.
        consequences: indices the root explains, in order of step.
        unrelated: indices it does not explain.
        undecided: what the log cannot tell, each with what would decide it.
        timeline: lead-up, last healthy step, first bad step, what followed.
        next_command: one command line that can be pasted; empty when there is none.
        cause: what is behind it where no finding is the root (an exception); else empty.
        remedy: what to do about that; else empty.
    """

    status: Status
    summary: str
    root: int | None = None
    consequences: tuple[int, ...] = ()
    unrelated: tuple[int, ...] = ()
    undecided: tuple[str, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    next_command: str = ""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the report's first line says about the run.

    Attributes:
        path: as the user gave it.
        steps: rows in the log.
        first_step: first step, or None in an empty log.
        last_step: last step, or None.
        source_format: who wrote the log.
        precision: fp32, fp16, bf16 or empty when unknown.
        scaler: was a loss scaler at work; None when unknown.
        clip_threshold: None when unknown or nothing clips.
        duration_s: wall-clock seconds of all segments, or None.
        ended: how the run ended, in a clause, or empty.
        repairs: what the reader mended, a clause each.
        superseded: what was wrong in rows that a resume replaced, a clause each.
        missing: what the recording could not write, a clause each.
        interval: steps that a row usually covers; 1 where every step is logged.
        unit: what rows count, ``step`` or ``epoch``.
        counted: are steps the rows' own numbers, because the log names none?
        doubt: by what a foreign log was recognised, where that is less than certain.
        learned: what its reader inferred or put right, a clause each.
    """

    path: str
    steps: int
    first_step: int | None
    last_step: int | None
    source_format: str
    precision: str = ""
    scaler: bool | None = None
    clip_threshold: float | None = None
    duration_s: float | None = None
    ended: str = ""
    repairs: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    interval: int = 1
    unit: str = "step"
    counted: bool = False
    doubt: str = ""
    learned: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was found out about one run; all renderers take this.

    Attributes:
        run: the facts of the run.
        verdict: the answer.
        findings: most severe first, then by step; the verdict's indices point here.
        rules: the outcome of every rule, in report order.
        source: the run it is of, for pictures; no part of what is told or compared.
    """

    run: RunFacts
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    rules: tuple[RuleOutcome, ...] = ()
    source: Run | None = field(default=None, repr=False, compare=False)

    def plot(self) -> Figure:
        """The run on one page, with the findings of this diagnosis; see ``plot_run``.

        Raises:
            InputError: the run has nothing to draw, or ``source`` is None.
        """
        # By the public name: this stage knows none of the later ones, and still reads naturally.
        import forensics

        figure: Figure = forensics.plot_run(self)
        return figure

    def _repr_html_(self) -> str:
        """Verdict and findings, for a notebook; see ``render_html_summary``."""
        import forensics

        return forensics.render_html_summary(self)
