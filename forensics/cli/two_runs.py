"""What the verbs that hold two runs against each other are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def two_runs(command: F) -> F:
    """Add ``RUN_A``, ``RUN_B`` and ``--rtol``."""
    add_tolerance = click.option(
        "--rtol",
        type=click.FloatRange(min=0),
        default=0.0,
        metavar="X",
        help="Relative difference up to which numbers are alike. Default: 0, the same bits.",
    )
    add_b = click.argument("run_b", metavar="RUN_B", type=click.Path())
    add_a = click.argument("run_a", metavar="RUN_A", type=click.Path())
    return add_a(add_b(add_tolerance(command)))
