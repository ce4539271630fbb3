"""Starting recordings that say what they do, and killing them in the middle of it."""

from __future__ import annotations

import os
import random
import select
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fire.fork_server import Child, ForkServer
from tests.fire.training import record

PATIENCE = 300.0
"""Seconds to wait for a mark; a busy machine is no failure."""
MOMENTS = {"step": 24, "checkpoint": 6, "compact": 5, "open": 1, "supersede": 1}
"""What a kill follows closely, and after how many of them at most."""


@dataclass
class Killer:
    """Kills the recording of one run directory again and again.

    Attributes:
        forks: where the recordings are forked.
        run: the run directory.
        chance: decides on the moments.
        told: steps of which a recording has said that they are done.
        kills: the moments so far.
    """

    forks: ForkServer
    run: Path
    chance: random.Random
    told: set[int] = field(default_factory=set)
    kills: list[str] = field(default_factory=list)

    def kill_once(self) -> bool:
        """Start it, or resume it, and kill it.

        Returns:
            False where it was done before the moment came: the next call begins a new run.
        """
        events = ["step", "step", "checkpoint", "compact", "open"]
        event = self.chance.choice([*events, "supersede"] if self.run.exists() else events)
        count = self.chance.randint(1, MOMENTS[event])
        pause = self.chance.random() * 0.006
        with self._marks() as marks:
            child = self._start()
            for mark in marks.lines():
                count -= mark.startswith(event)
                self._note(mark)
                if count == 0:
                    break
            time.sleep(pause)
            code = child.kill()
            for mark in marks.rest():
                self._note(mark)
        assert code in (-9, 0), child.text()
        if code == 0:
            shutil.rmtree(self.run)
            self.told.clear()
            return False
        self.kills.append(f"after {event}, {1000 * pause:.1f} ms")
        return True

    def finish(self) -> None:
        """Resume it to its end."""
        child = self.forks.start(record, self.run, {"resume": True}, said=self._said)
        assert child.wait() == 0, child.text()

    @property
    def _said(self) -> Path:
        return self.run.with_name(f"{self.run.name}.said")

    def _start(self) -> Child:
        told = {"resume": self.run.exists()}
        return self.forks.start(record, self.run, told, self._pipe, said=self._said)

    @property
    def _pipe(self) -> Path:
        return self.run.with_name(f"{self.run.name}.marks")

    def _marks(self) -> Marks:
        if not self._pipe.exists():
            os.mkfifo(self._pipe)
        return Marks(self._pipe)

    def _note(self, mark: str) -> None:
        if mark.startswith("step "):
            self.told.add(int(mark.removeprefix("step ")))


class Marks:
    """The reading end of the pipe that a recording writes its marks to, a line each."""

    def __init__(self, pipe: Path) -> None:
        self._file = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # a writer too: there is no end
        self._text = b""

    def lines(self) -> Iterator[str]:
        """Every mark up to the one that the recording is over."""
        while True:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                yield line.decode()
                if line == b"over":
                    return
                continue
            assert select.select([self._file], [], [], PATIENCE)[0], "the recording says nothing"
            self._text += os.read(self._file, 4096)

    def rest(self) -> list[str]:
        """The marks that are still in the pipe."""
        while select.select([self._file], [], [], 0)[0]:
            self._text += os.read(self._file, 65536)
        return self._text.decode().split("\n")[:-1]

    def __enter__(self) -> Marks:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
