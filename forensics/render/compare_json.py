"""Two runs side by side as JSON."""

from __future__ import annotations

import json

import forensics
from forensics.diagnose.comparison import Comparison
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_compare_json(comparison: Comparison) -> str:
    """One JSON document, pure ASCII; NaN and infinities are texts."""
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "comparison": {**json_value(comparison), "likeness": comparison.likeness.value},
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
