"""What a bisection was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forensics.replay.bad import NONFINITE, BadPredicate
from forensics.replay.ranks.crew import Crew

Progress = Callable[[str, int, int], None]
"""Told what is under way in a few words, how much of it is done, and how much there is in all."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller of ``bisect_run`` asked for; attributes as there.

    ``crew`` are the other ranks where several processes replay together.
    """

    predicate: BadPredicate
    recipe: str | None
    from_step: int | None
    until_step: int | None
    what_if: bool
    further_steps: int
    tolerance: float | None
    device: str | None
    capsule: Path | None
    progress: Progress
    overwrite: bool = False
    crew: Crew | None = None

    def as_command(self) -> str:
        """Those options that a further command on the same run needs again, each after a space."""
        given = {
            "--recipe": self.recipe,
            "--bad": None if self.predicate.text == NONFINITE else self.predicate.text,
            "--from": self.from_step,
            "--until": self.until_step,
            "--device": self.device,
        }
        parts = [f"{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None]
        return "".join(f" {part}" for part in parts)
