"""What two runs say about themselves that is not the same: config, code, data, machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from forensics.frozen import dataclass
from forensics.runlog.manifest import Manifest

GROUPS: dict[str, tuple[str, ...]] = {
    "config": (
        "recipe",
        "precision",
        "autocast_device",
        "max_norm",
        "accumulation",
        "optimizer",
        "schedule",
        "scaler",
        "world_size",
        "post_clip",
    ),
    "seeds": ("seeds",),
    "model": ("parameters", "arrival_order"),
    "code": ("git", "versions", "tool_version"),
    "data": ("data_version",),
    "machine": ("device", "device_name", "processor", "threads"),
    "end": ("ended",),
}
"""The fields that make a run what it is, by what they belong to; times and paths do not."""
_LOADED = re.compile(r"^_forensics_recipe_[0-9a-f]+:")
"""The module that a recipe's file was loaded as: a name of this program's own."""
MOST = 200
"""Differences that are kept; two runs of different models have no end of them."""
LONGEST = 60
"""Characters of a value that are kept."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        group: one of ``GROUPS``.
        key: where, such as ``optimizer.lr``.
        a: what run A says, as text; empty where it says nothing.
        b: the same of run B.
    """

    group: str
    key: str
    a: str
    b: str


def differences(a: Manifest | None, b: Manifest | None) -> tuple[Difference, ...]:
    """Everything that differs, by group; nothing where neither run has a run.json."""
    if a is None or b is None:
        return ()
    found: list[Difference] = []
    for group, names in GROUPS.items():
        for name in names:
            left = dict(_flat(name, getattr(a, name)))
            right = dict(_flat(name, getattr(b, name)))
            found += [
                Difference(
                    group=group, key=key, a=_short(left.get(key, "")), b=_short(right.get(key, ""))
                )
                for key in dict.fromkeys((*left, *right))
                if left.get(key) != right.get(key)
            ]
    return tuple(found[:MOST])


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every leaf of a value with its path; parameters go by their names."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item)
    elif key == "parameters":
        for info in value:
            grad = "" if info.requires_grad else ", frozen"
            yield f"{key}.{info.name}", f"{info.dtype} {info.shape}, group {info.group}{grad}"
    elif value is not None and value != "" and value != ():
        yield key, _LOADED.sub("", str(value))


def _short(text: str) -> str:
    """A value that a person can take in; the rest is told apart by its end."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"
