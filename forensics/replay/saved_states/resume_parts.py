"""What a resume needs, and which of it a saved state has not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from forensics.replay.saved_states import roles

NEEDED = {
    roles.PARAM: "the model's parameters",
    roles.OPTIMIZER: "the optimizer's state",
    roles.SCHEDULER: "the learning-rate schedule",
    roles.SCALER: "the loss scaler (where it trained in fp16)",
    roles.RNG: "the random generators",
    roles.DATA: "the position in the data",
}
"""Clauses in the order of their weight."""


def missing_parts(present: Collection[str]) -> tuple[str, ...]:
    """The clauses of the parts that are not there."""
    return tuple(clause for role, clause in NEEDED.items() if role not in present)


def roles_in(tree: Any) -> set[str]:
    """The roles of a state's parts; a part that is there and empty was not used, not forgotten."""
    if not isinstance(tree, dict):
        return set()
    found = _roles(tree)
    if len(tree) == 1:  # a wrapper around all: {"app": {...}}
        inner = next(iter(tree.values()))
        found |= _roles(inner) if isinstance(inner, dict) else set()
    return found


def _roles(keys: Iterable[Any]) -> set[str]:
    return {roles.role_of(str(key)) for key in keys}
