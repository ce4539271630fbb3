"""Is a replayed step bad? By the predicate, and without calling the loss scaler's work a fault."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from forensics.replay.bad import NONFINITE, BadPredicate
from forensics.replay.rerun.replayed_step import ReplayedStep

_OVERFLOW = ("grad", "norm")
"""Where a step is bad whose gradients overflow under the loss scale, and nothing else."""


@dataclass(frozen=True)
class RowJudge:
    """Judges replayed steps by their rows.

    A step that the scaler skips with a finite loss, at a scale above 1, is its ordinary search for
    a scale, unless the record of that step says more.

    Attributes:
        predicate: what was asked for.
        strict: steps in which an overflow is the fault itself: those that the rules' reading of the
            log does not put down to the scaler.
    """

    predicate: BadPredicate
    strict: frozenset[int] = field(default_factory=frozenset)

    def __call__(self, step: ReplayedStep) -> bool:
        """Is this step bad?"""
        if step.exception:
            return True
        if self.predicate.text != NONFINITE:
            return step.log is not None and self.predicate.holds(step.log.row())
        return bool(step.bad) and not self._is_routine(step)

    def only_at(self, step: int) -> RowJudge:
        """For trials: whatever the record says of other steps, a trial goes its own way there."""
        return RowJudge(self.predicate, frozenset({step}))

    @property
    def by_state(self) -> bool:
        """May the state be bad where no row is? Not where a condition on rows was asked for."""
        return self.predicate.text == NONFINITE

    @property
    def stays(self) -> str:
        """What steps are that are not bad, in words."""
        return self.predicate.otherwise

    def _is_routine(self, step: ReplayedStep) -> bool:
        log = step.log
        if log is None or not log.skipped or step.step in self.strict:
            return False
        overflow = all(name.partition(":")[0] in _OVERFLOW for name in step.bad)
        return overflow and not log.norm_overflow and 1.0 < log.scaler_scale < math.inf
