"""The rules as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import forensics
from forensics.diagnose.rule import Rule
from forensics.render.json_values import json_value

FORMAT_VERSION = 1
"""Version 1 (2026): the first. Keys may be added within a version; none is renamed or removed."""


def render_rules_json(groups: Mapping[str, Sequence[Rule]]) -> str:
    """One JSON document, pure ASCII; rules in report order."""
    document = {
        "format_version": FORMAT_VERSION,
        "tool": "forensics",
        "version": forensics.__version__,
        "rules": [_rule(rule, group) for group, members in groups.items() for rule in members],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _rule(rule: Rule, group: str) -> dict[str, object]:
    return {
        "rule": rule.id,
        "group": group,
        "summary": rule.summary,
        "doc": rule.doc,
        "needs": list(rule.needs),
        "parts": list(rule.parts),
        "thresholds": [
            {"name": name, "default": json_value(getattr(rule.defaults, name)), "source": source}
            for name, source in rule.sources().items()
        ],
    }
