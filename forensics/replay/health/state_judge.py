"""Judges the saved states of a series one at a time, for the search; nothing is looked at twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forensics.diagnose.state_health import StateHealth
from forensics.errors import InputError
from forensics.replay.bisection import Judgement, State
from forensics.replay.checkpoint_health import (
    believed,
    believed_bad,
    examine_state,
    judgement_of,
)
from forensics.replay.health.state_series import Candidate
from forensics.replay.saved_states import StateFile
from forensics.runlog.checkpoint_files import BadTensor

Progress = Callable[[str, int, int], None]
"""Told what is under way, how many states were looked into, and how many there are."""


@dataclass
class StateJudge:
    """Judges the candidates of a series, each by all of its files.

    Attributes:
        candidates: oldest first.
        verify: believe no health file.
        progress: told before each look.
        answers: the judgements so far, by index.
        bad: the bad values of each bad state, by index.
    bad_paths: the files of each bad state that hold a bad value, by index.
    """

    candidates: Sequence[Candidate]
    verify: bool = False
    progress: Progress | None = None
    answers: dict[int, Judgement] = field(default_factory=dict)
    bad: dict[int, tuple[BadTensor, ...]] = field(default_factory=dict)
    bad_paths: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _finite: dict[int, frozenset[str]] = field(default_factory=dict)

    def known(self) -> dict[int, Judgement]:
        """What health files say, without a look into any state."""
        found: dict[int, Judgement] = {}
        for i, candidate in enumerate([] if self.verify else self.candidates):
            told = [believed(file.path) for file in candidate.files if not file.refused]
            if len(candidate.files) == 1 and told and told[0] is not None:
                found[i] = told[0]
                self.bad[i] = believed_bad(candidate.files[0].path)
        return found

    def test(self, index: int) -> Judgement:
        """Look into one candidate: BAD where a part is, else UNTESTABLE where one is."""
        if self.progress is not None:
            self.progress("looking into saved states", len(self.answers), len(self.candidates))
        health: list[StateHealth] = []
        refused: list[str] = []
        for file in self.candidates[index].files:
            try:
                health.append(self._examine(file, index))
            except InputError as error:
                refused.append(error.what)
        bad = tuple(tensor for part in health for tensor in part.bad)
        self.bad[index] = bad
        self.bad_paths[index] = tuple(str(part.path) for part in health if part.bad)
        self._finite[index] = frozenset[str]().union(*(part.finite_names for part in health))
        if bad or not refused:
            self.answers[index] = judgement_of(bad)
        else:
            self.answers[index] = Judgement(state=State.UNTESTABLE, reason=refused[0])
        return self.answers[index]

    def _examine(self, file: StateFile, index: int) -> StateHealth:
        if file.refused:
            raise InputError(file.refused, where=file.path)
        older = [names for i, names in self._finite.items() if i < index]
        return examine_state(
            file.path, root=file.root, finite_before=frozenset[str]().union(*older)
        )
