"""A bisection that every rank of a launcher calls: rank 0 makes it, the others follow."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forensics.diagnose.bisection_result import BisectionResult
from forensics.errors import ForensicsError, TerminatedError, UsageError
from forensics.record.ranks.world import World
from forensics.replay.ranks.crew import Crew
from forensics.replay.ranks.following import follow
from forensics.replay.ranks.messages import End

_TOLD_TO_END = "told to end, as a launcher does when another rank has ended"


def on_all_ranks(
    world: World,
    recipe: str | None,
    device: str | None,
    bisect: Callable[[Crew], BisectionResult],
) -> BisectionResult:
    """What ``bisect`` gives on rank 0, on every rank.

    Args:
        world: this rank among all.
        recipe: that the user named, or None.
        device: the same.
        bisect: called on rank 0, with the other ranks.

    Raises:
        ForensicsError: what ``bisect`` raised, on every rank.
        RankLostError: on the other ranks, where one has ended before the end.
    """
    if not world.leads:
        result: BisectionResult = follow(world)
        return result
    crew = Crew(world, recipe, device)
    message = End(failure=("ForensicsError", "rank 0 has ended", None, None))
    _stop_once(crew)
    try:
        result = bisect(crew)
        message = End(result=result)
        return result
    except ForensicsError as error:
        message = End(failure=(type(error).__name__, error.what, error.where, error.hint))
        raise
    finally:
        crew.end(message)


def check_ranks(trained: int, launched: int, path: Path, options: str) -> None:
    """Are there as many processes as ranks trained?

    Args:
        trained: ranks of the run.
        launched: processes that are to replay it.
        path: of the run, as the user named it.
        options: the rest of the command line, after a space.

    Raises:
        UsageError: there are not; says what to type.
    """
    if trained == launched:
        return
    ranks = f"{trained:,} {'rank' if trained == 1 else 'ranks'}"
    command = f"forensics bisect {shlex.quote(str(path))}{options}"
    one = f"`{command}` in one process"
    many = f"`torchrun --standalone --nproc-per-node {trained} -m {command}`"
    raise UsageError(
        f"was trained on {ranks}, and {launched:,} processes are to replay it",
        where=path,
        hint=one if trained == 1 else f"{many}, or {one}",
    )


def _stop_once(crew: Crew) -> None:
    """The first Ctrl-C, or the launcher's SIGTERM, ends the bisection with what is known by then.

    A launcher sends both, more than once and to all, when one rank has ended: those that follow
    must not cut the answer short.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    seen: list[int] = []

    def stop(number: int, _: Any) -> None:
        seen.append(number)
        if len(seen) == 1 and not crew.exchange.gone:
            if number == signal.SIGTERM:
                raise TerminatedError(_TOLD_TO_END)
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
