"""Dataclasses from JSON that may be damaged, with every type checked; and back to plain JSON."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_NONFINITE = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


class FieldError(ValueError):
    """A field of the wrong type; the message says which, and what it should be."""


def dataclass_from_json(cls: type[_T], data: Mapping[str, Any], where: str = "") -> _T:
    """A dataclass from a JSON object: unknown keys are ignored, null keeps the default.

    Fields may be int, float, str, bool, ``Any``, optional ones, tuples of one type, mappings
    with text keys, and dataclasses of these. A float may be ``"nan"``, ``"inf"``, ``"-inf"``,
    ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.

    Raises:
        FieldError: a value is of the wrong type, or a field without default is missing.
    """
    prefix = f"{where}." if where else ""
    values = {
        name: _decode(kind, data[name], prefix + name)
        for name, kind in _types_of(cast(Any, cls)).items()
        if data.get(name) is not None
    }
    try:
        return cls(**values)
    except TypeError as error:
        raise FieldError(f"{where or 'it'} lacks a field ({error})") from error


def plain_json(value: Any) -> Any:
    """The same value in JSON's own types: non-finite floats and foreign objects become text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    if hasattr(value, "item") and not getattr(value, "shape", None):  # a numpy or torch scalar
        return plain_json(value.item())
    return str(value)


@cache
def _types_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _decode(kind: Any, value: Any, where: str) -> Any:
    """One value as ``kind``, or a FieldError that names the field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):  # only ``X | None`` is used, and null is handled
        return _decode(next(a for a in arguments if a is not type(None)), value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return dataclass_from_json(kind, _expect(Mapping, value, where, "an object"), where)
    if origin is tuple:
        items = _expect(list, value, where, "a list")
        return tuple(_decode(arguments[0], x, f"{where}[{i}]") for i, x in enumerate(items))
    if origin is not None:  # Mapping[str, X]
        pairs = _expect(Mapping, value, where, "an object").items()
        return {k: x if x is None else _decode(arguments[1], x, f"{where}.{k}") for k, x in pairs}
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is bool:
        return _expect(bool, value, where, "true or false")
    if kind is str:
        return _expect(str, value, where, "text")
    if kind is float and isinstance(value, str) and value in _NONFINITE:
        return _NONFINITE[value]
    allowed = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise FieldError(f"{where} should be a number, not {_shown(value)}")
    try:
        return kind(value)
    except OverflowError as error:
        raise FieldError(f"{where} is out of range") from error


def _expect(kind: type[Any], value: Any, where: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise FieldError(f"{where} should be {words}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value in a message, short whatever it is."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return repr(value)[:40]
