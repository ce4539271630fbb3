"""Short recordings of known faults, brought to the state just before the bad step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forensics.errors import TrainingRaisedError
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session
from tests.unit.replay.recordings import open_run, record


@contextmanager
def before_step(
    home: Path, recipe: str, step: int, **settings: Any
) -> Iterator[tuple[Session, MemoryState]]:
    """A session on a recording of the recipe, and the state just before one of its steps."""
    with suppress(TrainingRaisedError):
        record(recipe, home / recipe, **settings)
    with open_run(home / recipe) as session:
        session.go_to(max(step - 1, 0))
        while session.step_index < step:
            session.run_step()
        yield session, session.capture()
