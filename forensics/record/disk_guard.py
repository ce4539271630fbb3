"""Writing that must not kill the training: a full disk costs the record, never the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType

_FIRST_STEP = re.compile(r"failed (?:at step|between steps) (\d+)")


@dataclass
class _Loss:
    """What one kind of file could not take."""

    reason: str
    first: int
    last: int
    count: int = 1
    noun: str = "write"

    def clause(self, kind: str) -> str:
        span = f"at step {self.first}"
        if self.last > self.first:
            span = f"between steps {self.first} and {self.last}"
        times = f"1 {self.noun}" if self.count == 1 else f"{self.count:,} {self.noun}s"
        return f"{kind}: {times} failed {span} ({self.reason})"


class _Caught:
    """What some exceptions in a block are told to, and then do not leave it.

    A class, and one object for all steps, as each step enters ten of them: by way of a generator
    they were a good part of what recording costs.
    """

    __slots__ = ("_expected", "_told")

    def __init__(
        self, expected: tuple[type[Exception], ...], told: Callable[[Exception], None]
    ) -> None:
        self._expected, self._told = expected, told

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._expected):
            return False
        self._told(error)
        return True


class DiskGuard:
    """Catches what goes wrong on the disk, says it once a kind of file, and keeps count.

    Args:
        say: told in one line when a kind of file fails for the first time.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.step = 0  # the step under way; whoever owns the guard keeps it up to date
        self._say = say
        self._lost: dict[str, _Loss] = {}
        self._earlier: tuple[str, ...] = ()
        self._made: dict[tuple[object, ...], _Caught] = {}

    def writing(self, kind: str, *further: type[Exception]) -> _Caught:
        """A write of one kind of file; an OSError in it is noted, and the training goes on.

        Args:
            kind: such as ``steps.csv``.
            further: exceptions beside OSError that a full disk causes here.
        """
        key = (kind, *further)
        if (made := self._made.get(key)) is None:
            made = _Caught((OSError, *further), partial(self._not_written, kind))
            self._made[key] = made
        return made

    def shielding(self, call: str) -> _Caught:
        """What the recorder does within somebody's loop: no error of it may end that.

        Args:
            call: such as ``gradients()``.
        """
        if (made := self._made.get((call, None))) is None:
            made = self._made[call, None] = _Caught((Exception,), partial(self._failed, call))
        return made

    def _not_written(self, kind: str, error: Exception) -> None:
        self._note(kind, _reason(error), "cannot be written")

    def _failed(self, call: str, error: Exception) -> None:
        self._note(call, f"{type(error).__name__}: {_reason(error)}", "failed", "call")

    def _note(self, kind: str, reason: str, what: str, noun: str = "write") -> None:
        lost = self._lost.get(kind)
        if lost is None:
            self._lost[kind] = _Loss(reason, self.step, self.step, noun=noun)
            self._say(
                f"step {self.step}: {kind} {what} ({reason}): the training goes on, "
                "the record has a gap"
            )
        else:
            lost.last, lost.count = self.step, lost.count + 1

    def carry(self, missing: tuple[str, ...]) -> None:
        """Keep what earlier segments of the run have lost."""
        self._earlier = missing

    def lacks(self, clause: str) -> None:
        """Something that this run cannot have, whatever the disk takes."""
        self._earlier = tuple(dict.fromkeys((*self._earlier, clause)))

    @property
    def missing(self) -> tuple[str, ...]:
        """What the run lacks, one clause a kind of file."""
        return (*self._earlier, *(lost.clause(kind) for kind, lost in self._lost.items()))


def still_missing(missing: Iterable[str], from_step: int) -> tuple[str, ...]:
    """What stays lost of a run that goes on at ``from_step``: what failed later is done again."""
    firsts = {clause: _FIRST_STEP.search(clause) for clause in missing}
    return tuple(c for c, first in firsts.items() if first is None or int(first[1]) < from_step)


def _reason(error: Exception) -> str:
    """The system's words; of a wrapped error (torch's file writer) those of its cause."""
    inner = error.__context__
    if not isinstance(error, OSError) and isinstance(inner, OSError):
        error = inner
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.splitlines()[0][:200] if text else type(error).__name__
