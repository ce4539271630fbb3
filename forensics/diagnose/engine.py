"""``diagnose(run)``: every rule over one run, then the verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.diagnose.dating import dated
from forensics.diagnose.excerpts import with_excerpts
from forensics.diagnose.finding import Diagnosis, Finding, Outcome, RuleOutcome
from forensics.diagnose.rule import Rule
from forensics.diagnose.signals import Signals
from forensics.errors import StoreError, UsageError
from forensics.runlog.run import Run

if TYPE_CHECKING:
    from forensics.diagnose.bisection_result import BisectionResult

Overrides = Mapping[str, Mapping[str, Any]]
"""Thresholds from a config file: by rule id, then by threshold name."""


def diagnose(
    run: Run,
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    thresholds: Overrides | None = None,
    rules: Sequence[Rule] | None = None,
    progress: Callable[[int, int], None] | None = None,
    excerpts: bool = True,
) -> Diagnosis:
    """Run every rule and weigh what they found.

    Args:
        run: the run to judge.
        select: ids of the only rules to run (default: all).
        ignore: ids of rules to leave out.
        thresholds: settings that replace rules' defaults.
        rules: the rules to choose from (default: all of ``RULES``).
        progress: told after each rule how many are done, and of how many.
        excerpts: put excerpts of the log beside the findings, for sparklines.

    Raises:
        UsageError: a rule id or threshold name that does not exist.
    """
    from forensics.diagnose.facts import facts_of
    from forensics.diagnose.rules import RULES
    from forensics.diagnose.verdict import retold, weigh

    known = RULES if rules is None else rules
    chosen = _choose(known, select, ignore)
    run, result, notes = _bisection_of(run)
    signals = Signals(run)
    settings = {r.id: _settings(r, (thresholds or {}).get(r.id, {})) for r in chosen}
    outcomes: list[RuleOutcome] = []
    findings: list[Finding] = []
    for done, rule in enumerate(chosen, start=1):
        outcome, found = _apply(rule, signals, settings[rule.id])
        outcomes.append(outcome)
        findings += found
        if progress is not None:
            progress(done, len(chosen))
    findings.sort(key=lambda f: (-f.severity, f.first_step))
    with np.errstate(all="ignore"):  # a log may hold any number, and ratios of any two
        left_out = len(known) - len(chosen)
        verdict = weigh(signals, tuple(findings), tuple(outcomes), left_out)
        facts = facts_of(signals, verdict.summary)
    diagnosis = Diagnosis(
        run=facts,
        verdict=verdict,
        findings=retold(tuple(findings), verdict),
        rules=tuple(outcomes),
        source=run,
    )
    diagnosis = _with_bisection(diagnosis, result, notes)
    return with_excerpts(diagnosis, signals) if excerpts else diagnosis


def _bisection_of(run: Run) -> tuple[Run, BisectionResult | None, tuple[str, ...]]:
    """The run without a bisection that does not hold for its log, the one that does, and notes."""
    if run.bisection is None:
        return run, None, ()
    from forensics.diagnose.bisection_file import bisection_of
    from forensics.diagnose.bisection_result import BisectStatus

    result, notes = bisection_of(run)
    # One that found nothing is no reason not to bisect where the log has a root cause.
    told = result is not None and result.status is not BisectStatus.HEALTHY
    return replace(run, bisection=run.bisection if told else None), result, notes


def _with_bisection(
    diagnosis: Diagnosis, result: BisectionResult | None, notes: tuple[str, ...]
) -> Diagnosis:
    """The diagnosis with what a bisection located, and with what is wrong with its file."""
    if notes:
        facts = replace(diagnosis.run, repairs=(*diagnosis.run.repairs, *notes))
        diagnosis = replace(diagnosis, run=facts)
    if result is None:
        return diagnosis
    from forensics.diagnose.located import with_located

    return with_located(diagnosis, result)


def _apply(rule: Rule, signals: Signals, settings: Any) -> tuple[RuleOutcome, list[Finding]]:
    """One rule; a rule that crashes is FAILED and silences no other."""
    reason = rule.why_skipped(signals)
    if reason:
        return _outcome(rule.id, Outcome.SKIPPED, reason), []
    try:
        # NaN and Inf are our daily bread: numpy's warnings about them would be noise.
        with np.errstate(all="ignore"):
            found = [dated(signals, finding) for finding in rule.find(signals, settings)]
            if not found and rule.too_little is not None:
                reason = rule.too_little(signals, settings)
    except StoreError:  # no rule's fault, and half a run is no run
        raise
    except Exception as error:  # noqa: BLE001 - one broken rule must not hide the others
        reason = f"{type(error).__name__}: {error}"
        return RuleOutcome(rule=rule.id, outcome=Outcome.FAILED, reason=reason), []
    outcome = Outcome.FIRED if found else Outcome.SKIPPED if reason else Outcome.CLEAR
    return _outcome(rule.id, outcome, reason), found


@lru_cache(maxsize=512)
def _outcome(rule: str, outcome: Outcome, reason: str) -> RuleOutcome:
    """An outcome; most of them are the same for most of the runs of a scan."""
    return RuleOutcome(rule=rule, outcome=outcome, reason=reason)


def _choose(
    rules: Sequence[Rule], select: Collection[str], ignore: Collection[str]
) -> tuple[Rule, ...]:
    known = {r.id for r in rules}
    for name in (*select, *ignore):
        if name not in known:
            raise UsageError(f"no rule is called {name!r}", hint="`forensics rules` lists them")
    return tuple(r for r in rules if (not select or r.id in select) and r.id not in ignore)


def _settings(rule: Rule, changes: Mapping[str, Any]) -> Any:
    """The rule's thresholds with a config file's changes."""
    for name, value in changes.items():
        default = getattr(rule.defaults, name, None)
        if default is None:
            raise UsageError(
                f"rule {rule.id} has no threshold {name!r}",
                hint=f"`forensics rules {rule.id}` lists them",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"threshold {rule.id}.{name} must be a number, not {value!r}")
    return replace(rule.defaults, **changes) if changes else rule.defaults
