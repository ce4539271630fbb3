"""A bisection as JSON for other programs: a contract, versioned by ``FORMAT_VERSION``."""

from __future__ import annotations

import json

import forensics
from forensics.diagnose.bisection_file import FORMAT_VERSION, flat_fields
from forensics.diagnose.bisection_result import BisectionResult
from forensics.render.json_values import json_value


def render_bisect_json(result: BisectionResult) -> str:
    """One JSON document, ended by a newline; pure ASCII.

    NaN and infinities are the texts "NaN", "Infinity" and "-Infinity", enums their words; what is
    unknown is null (a number) or "" (a text). The same result gives the same bytes.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "bisection": json_value(flat_fields(result)),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
