"""Saved states as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import forensics
from forensics.diagnose.state_health import StateHealth
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_inspect_json(
    states: Sequence[StateHealth], *, errors: Sequence[Mapping[str, str]] = ()
) -> str:
    """One JSON document, pure ASCII.

    Args:
        states: those that could be read, in the order they were given.
        errors: path and message of each that could not.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "states": [_state(health) for health in states],
        "errors": [dict(error) for error in errors],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _state(health: StateHealth) -> dict[str, Any]:
    whole = json_value(health)
    del whole["finite_names"]  # what later states are held to, and thousands of names long
    return {"path": whole.pop("path"), "finite": health.finite, **whole}
