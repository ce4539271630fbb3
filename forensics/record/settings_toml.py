"""Settings as TOML: from a file, from ``key=value`` texts of the command line, and back."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forensics.errors import InputError, UsageError
from forensics.record.settings import NONE
from forensics.runlog.manifest import MANIFEST_NAME, read_manifest


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of one TOML file, or those a run's ``run.json`` holds; nested, not yet checked.

    Raises:
        InputError: the file cannot be read, or is not TOML, or a manifest without settings.
    """
    if path.name == MANIFEST_NAME:
        return _settings_of_run(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=path) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not a text file", where=path, hint="TOML is UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        hint = "settings are TOML: `forensics record RECIPE --print-config` shows all of them"
        raise InputError(f"is not valid TOML: {error}", where=path, hint=hint) from error


def _settings_of_run(path: Path) -> dict[str, Any]:
    config = read_manifest(path).recipe.get("config")
    if not isinstance(config, dict) or not config:
        raise InputError("says nothing about the settings of its run", where=path)
    return config


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
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)


def _toml_value(value: Any) -> str:
    """Numbers as Python writes them (``nan`` and ``inf`` too), texts and booleans as JSON does."""
    if value is None:
        return _toml_text(NONE)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        return _toml_text(value)
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _toml_text(text: str) -> str:
    """JSON's quoting is TOML's; what a terminal would act on is written by its number, too."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else _by_number(c) for c in quoted)


def _by_number(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}"
