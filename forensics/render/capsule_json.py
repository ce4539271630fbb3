"""The replay of a capsule as JSON."""

from __future__ import annotations

import json

import forensics
from forensics.diagnose.capsule_verdict import CapsuleVerdict
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_capsule_json(verdict: CapsuleVerdict) -> str:
    """One JSON document, pure ASCII."""
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "capsule": json_value(verdict),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
