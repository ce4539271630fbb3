"""Options of the whole suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--renew``: write the golden files anew instead of comparing with them."""
    parser.addoption("--renew", action="store_true", help="write tests/golden anew; read the diff")
