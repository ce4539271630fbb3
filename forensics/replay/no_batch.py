"""A step whose data cannot be had: the recipe's ``batch`` raised, and there is nothing to trace."""

from __future__ import annotations

import linecache
from pathlib import PurePath
from typing import Any

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin, Persistence
from forensics.errors import NoBatchError
from forensics.replay.session import Session

REPLAYS = 3
"""Times that the data are asked for again."""


def no_batch(session: Session, step: int, error: NoBatchError) -> dict[str, Any]:
    """The fields of a result: where it raised, whether it does so again, and in the next step.

    Args:
        session: of the run.
        step: whose data cannot be had.
        error: what was raised for it.
    """
    again = [_raises(session, step) for _ in range(REPLAYS)]
    lasts = step + 1 < session.config.steps and _raises(session, step + 1)
    return {
        "origin": Origin(
            kind=FaultKind.EXCEPTION,
            phase="input",
            operator="batch",
            source_line=_line_of(error.__cause__),
            chain=(ChainLink(phase="input", what="exception", name="batch"),),
            summary=f"the recipe's batch({step}) raised {error.what}",
        ),
        "reproduces": all(again),
        "replays": REPLAYS,
        "persistence": Persistence.PERSISTENT if lasts else Persistence.TRANSIENT,
    }


def _raises(session: Session, step: int) -> bool:
    try:
        session.batch(step)
    except NoBatchError:
        return True
    return False


def _line_of(error: BaseException | None) -> str:
    """The innermost line of the recipe's own file; the innermost of all where there is none."""
    trace = None if error is None else error.__traceback__
    line = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "/forensics/replay/" not in PurePath(file).as_posix():
            code = linecache.getline(file, trace.tb_lineno).strip()
            line = f"{PurePath(file).name}:{trace.tb_lineno}  {code}".strip()
        trace = trace.tb_next
    return line
