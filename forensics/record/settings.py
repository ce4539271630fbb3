"""Settings from TOML files and the command line: merged into a dataclass, each value checked."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from forensics.errors import InputError, UsageError

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
    """``value`` as a setting of this type holds it."""
    if kind == float | None and (value is None or value == NONE):
        return None
    if kind in (float, float | None) and _is_number(value):
        return float(value)
    if kind == tuple[float, float] and isinstance(value, list | tuple):
        if len(value) == 2 and all(map(_is_number, value)):
            return (float(value[0]), float(value[1]))
    elif kind in (int, bool, str):
        if type(value) is kind:
            return value
    elif kind not in _WORDS:  # a table's own kinds: lists, None as a default …
        return value
    raise UsageError(f"{name} must be {_WORDS[kind]}, not {value!r}", where=where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of one TOML file, as nested dicts, not yet checked.

    Raises:
        InputError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not a text file", where=path, hint="TOML is UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not valid TOML: {error}", where=path) from error


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Nested settings from ``key=value`` texts, such as ``optimizer.lr=0.1`` or ``model.width=32``.

    A value is read as TOML would (numbers, true, lists, quoted texts); what TOML cannot read is a
    plain text. Later ones win.

    Raises:
        UsageError: no ``=``, an empty key, or a table and a value under one name.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            raise UsageError(
                f"{assignment!r} is not a setting", where="--set", hint="write key=value"
            )
        table = settings
        for part in parts[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UsageError(f"{key.strip()} is set as a value and as a table", where="--set")
        table[parts[-1]] = _parse_value(text.strip())
    return settings


def _parse_value(text: str) -> Any:
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # what TOML does not write so: .5, 1., 1e400
    except ValueError:
        return text


def to_toml(settings: Mapping[str, Any], prefix: str = "") -> str:
    """Nested settings as TOML text that ``read_settings`` takes back; None becomes ``"none"``."""
    plain = {k: v for k, v in settings.items() if not isinstance(v, Mapping)}
    lines = [f"{_toml_key(key)} = {_toml_value(value)}\n" for key, value in plain.items()]
    for key, table in settings.items():
        if isinstance(table, Mapping):
            name = prefix + _toml_key(key)
            lines.append(f"\n[{name}]\n{to_toml(table, f'{name}.')}")
    return "".join(lines)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _toml_value(value: Any) -> str:
    """JSON's texts, numbers, lists and booleans are TOML's as well, but for non-finite numbers."""
    if value is None:
        return json.dumps(NONE)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
