"""Resuming at a step: what is there from that step on is moved aside, never destroyed."""

from __future__ import annotations

import os


def supersede(run_dir: str | os.PathLike[str], from_step: int) -> None:
    """Move everything from ``from_step`` on to ``superseded/K/``; safe to repeat after a kill."""
    raise NotImplementedError
