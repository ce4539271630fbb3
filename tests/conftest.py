"""Options of the whole suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The ordinary suite draws the same examples every time, so that a commit is judged by what it
# changed; `.ci/run --full` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("new", print_blob=True)
settings.load_profile("new" if os.environ.get("FORENSICS_FULL") else "same")

# Two torch threads a process on two busy cores wait for each other: 20 times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of tests start a Python of their own. Where none may keep what it has compiled, each
# compiles the package anew: a quarter of the time of those tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--renew``: write the golden files anew instead of comparing with them."""
    parser.addoption("--renew", action="store_true", help="write tests/golden anew; read the diff")
