"""Values as JSON may hold them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from forensics.diagnose.finding import Severity
from forensics.render.json_values import json_value


@dataclass(frozen=True)
class Inner:
    values: tuple[float, ...]
    severity: Severity


def test_everything_becomes_plain_strict_json() -> None:
    value = {"a": Inner((1.5, float("nan"), float("inf"), float("-inf")), Severity.ERROR), 2: None}
    told = json_value({**value, "path": Path("x/y"), "flag": True})
    assert told == {
        "a": {"values": [1.5, "NaN", "Infinity", "-Infinity"], "severity": "error"},
        "2": None,
        "path": "x/y",
        "flag": True,
    }
    json.dumps(told, allow_nan=False)
