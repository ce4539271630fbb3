"""Bisect a folder of saved states by their health alone: no recipe, no log, no replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus, CheckpointVerdict
from forensics.diagnose.wording import counted
from forensics.errors import InputError, UsageError
from forensics.replay.bisection import Ending, Judgement, SearchResult, State, search
from forensics.replay.health.state_judge import Progress, StateJudge
from forensics.replay.health.state_series import Candidate, Series, series_in
from forensics.replay.saved_states import Unit, open_state


def bisect_health(
    folder: Path,
    *,
    from_step: int | None = None,
    until_step: int | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> BisectionResult:
    """Find the first state of a folder that is not finite, and what in it is not.

    At most ⌈log2 n⌉ + 2 states are looked into, and one more for each that cannot be read. Health
    files beside this program's own states are believed where they are not older than the state.

    Args:
        folder: any folder of saved states, or a run directory that has one.
        from_step: look at no state before this step.
        until_step: look at no state after this step.
        verify: believe no health file.
        progress: told what is under way.

    Returns:
        LOCATED where a good state is followed by a bad one, PARTIAL after a KeyboardInterrupt,
        NOT_BISECTABLE with the reason otherwise.

    Raises:
        InputError: the folder cannot be read, or holds no saved state.
        UsageError: no state lies in the range.
    """
    series = series_in(folder)
    within = _within(series, from_step, until_step, folder)
    judge = StateJudge(series.candidates, verify=verify, progress=progress)
    known = {i: j for i, j in judge.known().items() if within[0] <= i <= within[1]}
    try:
        found = _oldest(len(series.candidates), judge, known, within)
    except KeyboardInterrupt:
        return BisectionResult(
            path=str(folder),
            status=BisectStatus.PARTIAL,
            reason=f"stopped after {len(judge.answers)} of {len(series.candidates)} states",
            checkpoints=_verdicts(series.candidates, {**known, **judge.answers}, judge),
        )
    return _result(folder, series, judge, found)


def _oldest(
    count: int, judge: StateJudge, known: dict[int, Judgement], within: tuple[int, int]
) -> SearchResult:
    """Search; where health files contradict each other, again before the oldest bad state."""
    found = search(count, judge.test, known=known, within=within)
    while found.ending is Ending.FOUND and found.first_bad is not None:
        answers = {probe.index: probe.judgement for probe in found.history}
        oldest = min(i for i, answer in answers.items() if answer.state is State.BAD)
        if oldest >= found.first_bad:
            break
        found = search(count, judge.test, known=answers, within=(within[0], oldest))
    return found


def _within(
    series: Series, from_step: int | None, until_step: int | None, folder: Path
) -> tuple[int, int]:
    """First and last index in a range of steps."""
    inside = [
        i
        for i, candidate in enumerate(series.candidates)
        if (from_step is None or candidate.number >= from_step)
        and (until_step is None or candidate.number <= until_step)
    ]
    if not inside:
        numbers = [candidate.number for candidate in series.candidates]
        raise UsageError(
            f"no state lies in the range: there are {numbers[0]:,} to {numbers[-1]:,}", where=folder
        )
    return inside[0], inside[-1]


def _result(
    folder: Path, series: Series, judge: StateJudge, found: SearchResult
) -> BisectionResult:
    candidates = series.candidates
    answers = {probe.index: probe.judgement for probe in found.history}
    located = found.ending is Ending.FOUND
    bad = judge.bad.get(found.first_bad, ()) if found.first_bad is not None else ()
    anchor = found.last_good if found.last_good is not None else found.first_bad
    return BisectionResult(
        path=str(folder),
        status=BisectStatus.LOCATED if located else BisectStatus.NOT_BISECTABLE,
        reason=_reason(found, candidates, series.unit, answers, len(judge.answers)),
        checkpoints=_verdicts(candidates, answers, judge),
        bad_tensors=tuple(tensor.name for tensor in bad),
        missing=_missing(candidates[anchor]) if anchor is not None else (),
        remedy=_remedy(found, candidates, series.unit),
        next_command=_next(found, candidates, judge)
        or _next_unseen(found, folder, len(candidates) - len(answers)),
        notes=(*series.notes, *_notes(found, candidates, series.unit)),
    )


def _reason(
    found: SearchResult,
    candidates: Sequence[Candidate],
    unit: Unit,
    answers: dict[int, Judgement],
    opened: int,
) -> str:
    count = len(candidates)
    looked = f"{opened} of {count} looked into" if opened else "by their health files"
    if found.ending is Ending.FOUND:
        return f"judged by health alone, without a recipe; {looked}"
    if found.ending is Ending.ALL_GOOD:
        good = sorted(i for i, answer in answers.items() if answer.state is State.GOOD)
        first, last = (f"{candidates[i].number:,}" for i in (good[0], good[-1]))
        ends = f"{unit.value} {first}" if first == last else f"{unit.value} {first} and {last}"
        unseen = count - len(answers)
        between = f"; the {unseen} between them were not looked into" if unseen > 0 else ""
        return f"the states at the ends, {ends}, are finite ({looked}){between}"
    if found.ending is Ending.ALL_BAD and found.first_bad is not None:
        first = f"{unit.value} {candidates[found.first_bad].number:,}"
        return f"already the oldest state that can be read, {first}, is bad: none before it is good"
    first_reason = next(iter(answers.values())).reason if answers else "there is none"
    return f"no state can be read; the first: {first_reason}"


def _verdicts(
    candidates: Sequence[Candidate], answers: dict[int, Judgement], judge: StateJudge
) -> tuple[CheckpointVerdict, ...]:
    return tuple(
        CheckpointVerdict(
            step=candidate.number,
            verdict=answers[i].state.value if i in answers else "untested",
            reason=answers[i].reason if i in answers else "",
            path=_bad_path(candidate, judge, i),
        )
        for i, candidate in enumerate(candidates)
    )


def _bad_path(candidate: Candidate, judge: StateJudge, index: int) -> str:
    """Of several files of one step the one that holds the bad tensor."""
    return next(iter(judge.bad_paths.get(index, ())), candidate.path)


def _missing(candidate: Candidate) -> tuple[str, ...]:
    """What all files of a state together have not."""
    lacking: list[tuple[str, ...]] = []
    for file in candidate.files:
        try:
            lacking.append(open_state(file.path, file.root).missing)
        except InputError:
            continue
    return (
        tuple(part for part in lacking[0] if all(part in other for other in lacking))
        if (lacking)
        else ()
    )


def _remedy(found: SearchResult, candidates: Sequence[Candidate], unit: Unit) -> tuple[str, ...]:
    if found.last_good is None or found.ending is not Ending.FOUND:
        return ()
    good = candidates[found.last_good]
    return (f"Resume from {unit.value} {good.number:,} ({good.shown}), the last finite state.",)


def _next(found: SearchResult, candidates: Sequence[Candidate], judge: StateJudge) -> str:
    import shlex

    if found.first_bad is None or judge.bad.get(found.first_bad):
        return ""  # its bad tensors are told already, and a look at it would only lead back here
    path = _bad_path(candidates[found.first_bad], judge, found.first_bad)
    return f"forensics inspect {shlex.quote(path)}"


def _next_unseen(found: SearchResult, folder: Path, unseen: int) -> str:
    """A look at every state, where finite ends say nothing of those between them."""
    import shlex

    hidden = found.ending is Ending.ALL_GOOD and unseen > 0
    return f"forensics inspect {shlex.quote(str(folder))}" if hidden else ""


def _notes(found: SearchResult, candidates: Sequence[Candidate], unit: Unit) -> tuple[str, ...]:
    notes = []
    numbers = [f"{candidates[i].number:,}" for i in found.contradictions[:3]]
    if numbers:
        notes.append(
            f"The state of {unit.value} {', '.join(numbers)} is finite although an older one is "
            "not: the training was restarted, or these are states of several. The oldest bad one "
            "was taken."
        )
    if found.untestable:
        notes.append(
            f"{counted(len(found.untestable), 'state')} between the last good and the first bad "
            "one could not be read: the change may lie there as well."
        )
    if found.ending is Ending.FOUND and found.first_bad is not None and found.last_good is not None:
        low, high = candidates[found.last_good].number, candidates[found.first_bad].number
        notes.append(
            f"The fault lies between {unit.value} {low:,} and {high:,}. What health cannot tell "
            "is the step, the operator, the module and the samples: a run recorded with a recipe "
            f"is replayed from {unit.value} {low:,} for that."
        )
    return tuple(notes)
