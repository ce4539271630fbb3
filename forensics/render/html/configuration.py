"""What ``run.json`` says of how a run was made, as lines of a key and a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forensics.runlog.manifest import Manifest

MOST_LINES = 300
"""Lines that are told; a config of thousands is read in its own file."""
_MOST_ITEMS = 12
"""Items of a list that are told."""
_ELSEWHERE = {"columns", "parameters", "arrival_order", "missing"}
"""Told in other parts of the page, or too long to read."""


def configuration(manifest: Manifest | None) -> list[tuple[str, str]]:
    """The configuration; empty where there is no ``run.json``."""
    if manifest is None:
        return []
    known = {key: v for key, v in manifest.to_json().items() if key not in _ELSEWHERE}
    lines = [line for key, value in known.items() for line in _lines(key, value)]
    lines.append(("parameters", f"{len(manifest.parameters):,}"))
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([("…", f"{more:,} more lines in run.json")] if more > 0 else [])]


def _lines(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """One line a leaf: ``optimizer.name``, ``seeds.torch``; what is not set is left out."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _lines(f"{key}.{name}", item)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value[:_MOST_ITEMS]):
            yield from _lines(f"{key}.{number}", item)
    elif isinstance(value, list):
        if value:
            told = ", ".join(map(str, value[:_MOST_ITEMS]))
            more = len(value) - _MOST_ITEMS
            yield key, told + (f" … and {more:,} more" if more > 0 else "")
    elif value is not None and value != "":
        yield key, {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
