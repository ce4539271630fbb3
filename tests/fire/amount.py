"""How much of the long tests is run: ``.ci/run --full`` sets the variable and runs all of it."""

from __future__ import annotations

import os

FULL = bool(os.environ.get("FORENSICS_FULL"))


def amount(ordinary: int, full: int) -> int:
    """A number of kills, mutations …: in every run of the suite, or in the full one."""
    return full if FULL else ordinary
