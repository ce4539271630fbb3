"""The story of the parameters as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import forensics
from forensics.diagnose.param_facts import ParamSeries, ParamStory, Standing
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Raised when a field changes its meaning or goes away; new ones may come at any time."""


def render_params_json(story: ParamStory) -> str:
    """One JSON object; what was not taken is null, a NaN or Inf that was is a text."""
    fields = json_value(story)
    fields["usual_growth"] = _known(story.usual_growth)
    fields["grad_l2"] = _known(story.grad_l2)
    for name, rows in (("top", story.top), ("profile", story.profile)):
        fields[name] = [_standing(row) for row in rows]
    fields["series"] = [_series(series) for series in story.series]
    whole = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "params": fields,
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def _standing(row: Standing) -> dict[str, Any]:
    fields: dict[str, Any] = json_value(row)
    for name in ("share", "growth", "value_l2", "update_ratio"):
        fields[name] = _known(getattr(row, name))
    if not row.nonfinite:
        fields["grad_l2"] = _known(row.grad_l2)
    return fields


def _series(series: ParamSeries) -> dict[str, Any]:
    fields: dict[str, Any] = json_value(series)
    for name in ("grad_l2", "growth", "value_l2", "update_ratio"):
        fields[name] = [_known(value) for value in getattr(series, name)]
    return fields


def _known(value: float) -> Any:
    return None if math.isnan(value) else json_value(value)
