"""The saved states of a run: which are sound, and which is the last sound one, at few loads.

Health files answer without a load; what they do not tell is asked of the state itself, by binary
search, within the range that the log leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from forensics.diagnose.bisection_result import CheckpointVerdict
from forensics.replay.bisection import Ending, Judgement, SearchResult, State, search
from forensics.runlog.checkpoint_files import CheckpointInfo

Test = Callable[[CheckpointInfo], Judgement]
Flaw = Callable[[CheckpointInfo], str]
"""Why a state cannot be opened; empty where it can."""


@dataclass(frozen=True, kw_only=True)
class StateSearch:
    """What the saved states tell.

    Attributes:
        verdicts: every state, ascending.
        last_good: step of the last sound state before the first bad one; None where there is none.
        first_bad: step of the first bad state, or None.
        contradictions: steps of sound states after a bad one.
        loads: states that were loaded.
    """

    verdicts: tuple[CheckpointVerdict, ...] = ()
    last_good: int | None = None
    first_bad: int | None = None
    contradictions: tuple[int, ...] = ()
    loads: int = 0


def search_states(
    states: tuple[CheckpointInfo, ...],
    test: Test,
    *,
    flaw: Flaw = lambda _: "",
    not_after: int | None = None,
    not_before: int | None = None,
) -> StateSearch:
    """Find the first bad one of a run's saved states.

    Args:
        states: ascending.
        test: loads one and judges it; UNTESTABLE where it cannot be read.
        flaw: asked of the last sound state where only its health file was believed: a file that is
            torn or replaced is nothing to replay or resume from. The one before is asked next.
        not_after: the log already says that this step is bad: no later state need be asked.
        not_before: leave earlier states out, but for the newest of them.

    Returns:
        With at most ⌈log2 n⌉ + 2 loads, and one for each state that cannot be read.
    """
    if not states:
        return StateSearch()
    known = {i: judged for i, info in enumerate(states) if (judged := _by_file(info)) is not None}
    last = max(
        (i for i, s in enumerate(states) if not_after is None or s.step <= not_after), default=-1
    )
    first = max((i for i, s in enumerate(states) if not_before and s.step <= not_before), default=0)
    if last < first:
        return StateSearch(verdicts=_verdicts(states, known))
    found = search(len(states), lambda i: test(states[i]), known=known, within=(first, last))
    answers = {probe.index: probe.judgement for probe in found.history}
    good = _openable(states, answers, found.last_good, flaw)
    return StateSearch(
        verdicts=_verdicts(states, answers),
        last_good=_step(states, found, good),
        first_bad=_step(states, found, found.first_bad),
        contradictions=tuple(states[i].step for i in found.contradictions),
        loads=found.loads,
    )


def without(found: StateSearch, untestable: Mapping[int, str]) -> StateSearch:
    """What the states tell once some could not be loaded: reasons by step."""
    verdicts = tuple(
        replace(verdict, verdict=State.UNTESTABLE.value, reason=untestable[verdict.step])
        if verdict.step in untestable and verdict.verdict == State.GOOD.value
        else verdict
        for verdict in found.verdicts
    )
    return replace(found, verdicts=verdicts)


def _openable(
    states: tuple[CheckpointInfo, ...],
    answers: dict[int, Judgement],
    good: int | None,
    flaw: Flaw,
) -> int | None:
    """The newest sound state up to ``good`` that can be opened; the others become untestable."""
    for i in range(-1 if good is None else good, -1, -1):
        if i in answers and answers[i].state is State.GOOD:
            reason = flaw(states[i])
            if not reason:
                return i
            answers[i] = Judgement(state=State.UNTESTABLE, reason=reason)
    return None


def by_health_files(states: tuple[CheckpointInfo, ...]) -> StateSearch:
    """What names and health files say, before any state is looked into."""
    known = {i: judged for i, info in enumerate(states) if (judged := _by_file(info)) is not None}
    return StateSearch(verdicts=_verdicts(states, known))


def _by_file(info: CheckpointInfo) -> Judgement | None:
    """What the name and the health file say of a state; None where they say nothing."""
    reason = info.health.get("reason")
    text = reason if isinstance(reason, str) else ""
    if info.set_aside:
        return Judgement(state=State.BAD, reason=text or "set aside as non-finite")
    finite = info.health.get("finite", info.healthy)
    if finite is True:
        return Judgement(state=State.GOOD, reason=text)
    if finite is False:
        return Judgement(state=State.BAD, reason=text)
    return None


def _step(states: tuple[CheckpointInfo, ...], found: SearchResult, index: int | None) -> int | None:
    if index is None or found.ending is Ending.NOTHING_TESTABLE:
        return None
    return states[index].step


def _verdicts(
    states: tuple[CheckpointInfo, ...], answers: dict[int, Judgement]
) -> tuple[CheckpointVerdict, ...]:
    return tuple(
        CheckpointVerdict(
            step=info.step,
            verdict=answers[i].state.value if i in answers else "untested",
            reason=answers[i].reason if i in answers else "",
            path=info.path.name,
        )
        for i, info in enumerate(states)
    )
