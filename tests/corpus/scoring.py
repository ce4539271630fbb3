"""Holding one diagnosis to its label, and adding up many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis, Finding, Outcome, Severity
from tests.corpus.case import FAULTY_CASES, HEALTHY_CASES, SLOW, Case, Corpus, Expect, Label

SEEDS = {"tune": range(0, 5), "test": range(100, 105)}
"""Thresholds are tuned on the first and reported on the second."""


@dataclass(frozen=True)
class Judgement:
    """How one diagnosis fares.

    Attributes:
        name: of the case.
        seed: of the case.
        faulty: is a fault planted?
        rules: per expected rule ``hit``, ``wrong-step`` or ``missed``.
        alarms: rules at warning or above that the label does not allow.
        failed: rules that crashed.
        status: is the verdict's word right?
        root: is the root's rule right? None on healthy logs.
        step: is the root's step right too? None on healthy logs.
        said: what the verdict was.
        problems: one clause for everything that is not right.
    """

    name: str
    seed: int
    faulty: bool
    rules: tuple[tuple[str, str], ...] = ()
    alarms: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    status: bool = True
    root: bool | None = None
    step: bool | None = None
    said: str = ""
    problems: tuple[str, ...] = ()


def corpora() -> tuple[Corpus, Corpus]:
    """The healthy and the faulty corpus, with all cases registered."""
    import tests.corpus.faulty
    import tests.corpus.healthy

    assert tests.corpus.faulty.__all__
    assert tests.corpus.healthy.__all__
    return HEALTHY_CASES, FAULTY_CASES


def make(name: str, seed: int) -> Case:
    """A case by its name."""
    healthy, faulty = corpora()
    return (healthy if name in healthy.makers else faulty).case(name, seed)


def judge(case: Case, diagnosis: Diagnosis | None = None) -> Judgement:
    """Diagnose a case (or take its diagnosis) and hold it to the label."""
    diagnosis = diagnose(case.run) if diagnosis is None else diagnosis
    label, verdict = case.label, diagnosis.verdict
    rules = tuple((e.rule, _met(e, diagnosis.findings)) for e in label.must)
    alarms = _alarms(label, diagnosis.findings, _span(case))
    failed = tuple(r.rule for r in diagnosis.rules if r.outcome is Outcome.FAILED)
    status = str(verdict.status) in label.status
    chosen = None if verdict.root is None else diagnosis.findings[verdict.root]
    root, step = _root(label, chosen, str(verdict.status))
    problems = [f"{rule} {how}: {_found(rule, diagnosis)}" for rule, how in rules if how != "hit"]
    problems += [f"false alarm {_found(rule, diagnosis)}" for rule in alarms]
    problems += [f"rule failed {rule}" for rule in failed]
    said = _said(chosen, str(verdict.status))
    if not status or root is False or step is False:
        problems.append(f"verdict {said}")
    return Judgement(
        case.name,
        case.seed,
        label.faulty,
        rules,
        alarms,
        failed,
        status,
        root,
        step,
        said,
        tuple(problems),
    )


def _met(expect: Expect, findings: tuple[Finding, ...]) -> str:
    """``hit``, ``wrong-step`` or ``missed``."""
    own = [
        f
        for f in findings
        if f.rule == expect.rule and f.severity >= expect.least and expect.subject in f.subject
    ]
    if not own:
        return "missed"
    return "hit" if any(expect.at(f.first_step) for f in own) else "wrong-step"


def _span(case: Case) -> int:
    """Steps from the first row to the last."""
    step = case.run.steps.step
    return int(step[-1] - step[0]) if len(step) else 0


def _alarms(label: Label, findings: tuple[Finding, ...], span: int) -> tuple[str, ...]:
    """Rules that may not be there at warning or above, or are there before the fault is."""
    starts = [e.step - e.slack for e in (*label.roots, *label.must) if e.step is not None]
    begins = min(starts, default=0) - SLOW * span  # the onset of a slow consequence is no sharper
    # Clipping is a state of the run; it is a warning only beside a fault that begins later.
    anywhere = {"clipping-every-step", *(e.rule for e in label.must if e.step is None)}
    wrong = {
        f.rule
        for f in findings
        if f.severity >= Severity.WARNING
        and (f.rule not in label.allowed or (f.first_step < begins and f.rule not in anywhere))
    }
    return tuple(sorted(wrong))


def _root(label: Label, chosen: Finding | None, status: str) -> tuple[bool | None, bool | None]:
    if not label.faulty:
        return None, None
    if chosen is None:
        undecided = status == "undecided" and status in label.status
        return undecided, undecided
    right = [e for e in label.roots if e.rule == chosen.rule]
    return bool(right), any(e.at(chosen.first_step) for e in right)


def _said(chosen: Finding | None, status: str) -> str:
    if chosen is None:
        return status
    return f"{status}: {chosen.rule}@{chosen.first_step} ({chosen.severity.word})"


def _found(rule: str, diagnosis: Diagnosis) -> str:
    own = [f for f in diagnosis.findings if f.rule == rule]
    if not own:
        outcome = next((r for r in diagnosis.rules if r.rule == rule), None)
        return f"{rule} is {outcome.outcome} {outcome.reason}" if outcome else f"no rule {rule}"
    shown = ", ".join(f"@{f.first_step} {f.severity.word}" for f in own[:3])
    return f"{rule} {shown}{' …' if len(own) > 3 else ''}: {own[0].message[:110]}"


@dataclass
class Score:
    """The sum of many judgements."""

    judged: list[Judgement] = field(default_factory=list)

    def of(self, faulty: bool) -> list[Judgement]:
        """The judgements of faulty or of healthy logs."""
        return [j for j in self.judged if j.faulty == faulty]

    def by_rule(self) -> dict[str, Counter[str]]:
        """Per rule: hit, wrong-step, missed, healthy (false alarms there), faulty (there)."""
        table: dict[str, Counter[str]] = {}
        for one in self.judged:
            for rule, how in one.rules:
                table.setdefault(rule, Counter())[how] += 1
            for rule in one.alarms:
                table.setdefault(rule, Counter())["faulty" if one.faulty else "healthy"] += 1
        return dict(sorted(table.items()))

    def share(self, what: str) -> float:
        """Share of the faulty logs whose ``root``, ``step`` or ``status`` is right."""
        faulty = self.of(True)
        good = sum(bool(getattr(j, what)) for j in faulty)
        return good / len(faulty) if faulty else 1.0

    @property
    def healthy_with_alarm(self) -> int:
        """Healthy logs with any finding at warning or above."""
        return sum(bool(j.alarms) or not j.status for j in self.of(False))

    @property
    def found(self) -> float:
        """Share of the planted faults found at the right step."""
        planted = [how for j in self.of(True) for _, how in j.rules]
        return planted.count("hit") / len(planted) if planted else 1.0

    @property
    def failures(self) -> list[Judgement]:
        """Everything with a problem, healthy logs first."""
        return sorted((j for j in self.judged if j.problems), key=lambda j: (j.faulty, j.name))
