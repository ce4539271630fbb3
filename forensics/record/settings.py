"""Settings merged into a dataclass: each one known by name, of the right type, in its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from forensics.errors import UsageError

_T = TypeVar("_T")

NONE = "none"
"""How TOML and the command line, which know no null, write None."""


@dataclass(frozen=True)
class Limits:
    """What values a setting may have: some texts, or a range of numbers."""

    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def complaint(self, value: Any) -> str:
        """What ``value`` must be and is not; empty when it is within the limits."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        bounds = (
            (self.least, "at least", lambda v, b: v >= b),
            (self.above, "above", lambda v, b: v > b),
            (self.most, "at most", lambda v, b: v <= b),
            (self.below, "below", lambda v, b: v < b),
        )
        broken = [(bound, word) for bound, word, holds in bounds if not _holds(holds, value, bound)]
        return f"must be {broken[0][1]} {broken[0][0]:g}" if broken else ""


def _holds(holds: Any, value: Any, bound: float | None) -> bool:
    return bound is None or value is None or bool(holds(value, bound))


def merge(base: _T, changes: Mapping[str, Any], *, where: object, prefix: str = "") -> _T:
    """A dataclass with some settings changed, down through nested dataclasses and tables.

    Args:
        base: a frozen dataclass; its field types say what a value must be.
        changes: settings by field name.
        where: the file or option to name in an error.
        prefix: dotted path of ``base`` within the whole, such as ``optimizer.``.

    Raises:
        UsageError: an unknown setting (with the nearest valid one), a wrong type, a value outside
            its limits.
    """
    hints = get_type_hints(type(base))
    limits = {f.name: f.metadata.get("limits", Limits()) for f in fields(base)}  # type: ignore[arg-type]
    merged: dict[str, Any] = {}
    for key, value in changes.items():
        name = f"{prefix}{key}"
        if key not in hints:
            raise _unknown(name, _names(base, prefix), where)
        current = getattr(base, key)
        if is_dataclass(current) or isinstance(current, Mapping):
            merged[key] = _merge_table(current, value, where=where, name=name)
            continue
        merged[key] = _coerce(hints[key], value, where=where, name=name)
        if complaint := limits[key].complaint(merged[key]):
            raise UsageError(f"{name} {complaint}, not {value!r}", where=where)
    return replace(base, **merged)  # type: ignore[type-var]


def _merge_table(current: Any, value: Any, *, where: object, name: str) -> Any:
    """A nested dataclass, or a free table: its present keys, where it has any, are the known."""
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{name} must be a table, not {value!r}", where=where, hint=f"write [{name}]"
        )
    if not isinstance(current, Mapping):
        return merge(current, value, where=where, prefix=f"{name}.")
    table = dict(current)
    for key, entry in value.items():
        if current and key not in current:
            raise _unknown(f"{name}.{key}", _names(current, f"{name}."), where)
        kind = type(current[key]) if key in current else type(entry)
        table[key] = _coerce(kind, entry, where=where, name=f"{name}.{key}")
    return table


_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    float | None: f'a number or "{NONE}"',
    tuple[float, float]: "a list of two numbers",
}


def _coerce(kind: Any, value: Any, *, where: object, name: str) -> Any:
    """``value`` as a setting of this type holds it; a table's own kinds are taken as they are."""
    if kind == float | None and (value is None or value == NONE):
        return None
    if kind in (float, float | None) and _is_number(value):
        return float(value)
    if kind == tuple[float, float] and _is_pair(value):
        return (float(value[0]), float(value[1]))
    if type(value) is kind or kind not in _WORDS:
        return value
    raise UsageError(f"{name} must be {_WORDS[kind]}, not {value!r}", where=where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))


def _names(base: Any, prefix: str) -> list[str]:
    """The dotted names of all settings of a dataclass or table, nested ones included."""
    if isinstance(base, Mapping):
        return [f"{prefix}{key}" for key in base]
    names: list[str] = []
    for f in fields(base):
        value = getattr(base, f.name)
        nested = is_dataclass(value) or (isinstance(value, Mapping) and value)
        names += _names(value, f"{prefix}{f.name}.") if nested else [f"{prefix}{f.name}"]
    return names


def _unknown(name: str, known: list[str], where: object) -> UsageError:
    """The error for a setting that does not exist, with the nearest that does."""
    last = name.rsplit(".", 1)[-1]
    near = [k for k in known if k.rsplit(".", 1)[-1] == last] or get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    return UsageError(f"there is no setting {name}", where=where, hint=hint)
