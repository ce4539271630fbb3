"""Many runs as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import forensics
from forensics.diagnose.survey import SurveyRow
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_scan_json(rows: Sequence[SurveyRow]) -> str:
    """One JSON document, pure ASCII; the runs worst first."""
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "runs": json_value(tuple(rows)),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
