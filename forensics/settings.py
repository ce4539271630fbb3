"""Settings from a file: ``[tool.forensics]`` in ``pyproject.toml``, or ``forensics.toml``.

::

    [tool.forensics]
    ignore = ["clipping-every-step"]
    fail-on = "error"

    [tool.forensics.rules.gradient-spike]
    z = 10

In ``forensics.toml`` the same without the ``tool.forensics`` prefix.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from forensics.diagnose.finding import Severity
from forensics.errors import InputError, UsageError
from forensics.frozen import dataclass

FILE_NAMES = ("forensics.toml", "pyproject.toml")
"""Names looked for in the working directory and above, the first one found wins."""
SEVERITIES = tuple(severity.word for severity in Severity)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may set for every report.

    Attributes:
        select: ids of the only rules to run; empty for all.
        ignore: ids of rules to leave out.
        fail_on: least severity that makes the exit code 1; None for never.
        thresholds: by rule id, then by threshold name.
        source: the file they came from, or None.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: Severity | None = None
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: Path | None = None


def load_settings(path: str | os.PathLike[str] | None = None) -> Settings:
    """Settings of a file, or of the nearest one at or above the working directory.

    Args:
        path: the file; None to look for one (finding none is fine).

    Raises:
        InputError: the file is missing, unreadable or not TOML.
        UsageError: it sets something that does not exist, or to a value that makes no sense.
    """
    if path is not None:
        return _parse(Path(path), _read(Path(path)), named=True)
    for directory in (here := Path.cwd(), *here.parents):
        for name in FILE_NAMES:
            candidate = directory / name
            if candidate.is_file():
                text = _read(candidate)
                # Most people's pyproject.toml is not about us, and not ours to complain about.
                if name == "forensics.toml" or "forensics" in text:
                    found = _parse(candidate, text, named=False)
                    if found.source is not None:
                        return found
    return Settings()


def check_rules(names: Iterable[str], *, where: object = None) -> None:
    """Raise UsageError for the first name that is no rule, with the nearest that are."""
    from forensics.diagnose.rules import RULES

    known = [rule.id for rule in RULES]
    for name in names:
        if name not in known:
            raise UsageError(f"no rule is called {name!r}", where=where, hint=nearest(name, known))


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint: the names most like a wrong one, or where they are listed.

    ``cutoff``: likeness from which one counts, as ``difflib`` measures it, from 0 to 1.
    """
    from difflib import get_close_matches

    known = list(known)
    within = [k for k in known if len(name) >= 3 and name in k]
    close = list(dict.fromkeys([*get_close_matches(name, known, cutoff=cutoff), *within]))[:3]
    return f"did you mean {' or '.join(close)}?" if close else "`forensics rules` lists them"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(error.strerror or str(error), where=path) from error
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", where=path, hint="settings are TOML") from error


def _parse(path: Path, text: str, *, named: bool) -> Settings:
    """The settings in a file's text; those of an unnamed pyproject.toml may not be there."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not valid TOML: {error}", where=path) from error
    if path.name == "pyproject.toml" or "tool" in data:
        tool = data.get("tool", {})
        if "forensics" not in tool:
            if named:
                raise UsageError("has no [tool.forensics] section", where=path)
            return Settings()
        data = tool["forensics"]
    return _settings(path, data)


def _settings(path: Path, data: Any) -> Settings:
    _known(path, data, ("select", "ignore", "fail-on", "rules"), "setting")
    select = _names(path, data, "select")
    ignore = _names(path, data, "ignore")
    rules = data.get("rules", {})
    _table(path, rules, "rules")
    check_rules((*select, *ignore, *rules), where=path)
    return Settings(
        select=select,
        ignore=ignore,
        fail_on=_severity(path, data.get("fail-on")),
        thresholds={rule: _thresholds(path, rule, rules[rule]) for rule in rules},
        source=path,
    )


def _thresholds(path: Path, rule_id: str, table: Any) -> dict[str, Any]:
    """One rule's numbers; a threshold may be written with - or _."""
    from forensics.diagnose.rules import RULES

    defaults = next(rule.sources() for rule in RULES if rule.id == rule_id)
    _table(path, table, f"rules.{rule_id}")
    values = {name.replace("-", "_"): value for name, value in table.items()}
    _known(path, values, tuple(defaults), f"threshold of {rule_id}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise UsageError(f"{rule_id}.{name} must be a number, not {value!r}", where=path)
    return values


def _known(path: Path, data: Any, known: tuple[str, ...], what: str) -> None:
    _table(path, data, what)
    for name in data:
        if name not in known:
            hint = f"there are {', '.join(known)}" if known else "there are none"
            raise UsageError(f"{name!r} is no {what}", where=path, hint=hint)


def _table(path: Path, value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{name} must be a table, not {value!r}", where=path)


def _names(path: Path, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{key} must be a list of rule ids, not {value!r}", where=path)
    return tuple(value)


def _severity(path: Path, value: Any) -> Severity | None:
    if value is None:
        return None
    if value not in SEVERITIES:
        hint = f"one of {', '.join(SEVERITIES)}"
        raise UsageError(f"fail-on cannot be {value!r}", where=path, hint=hint)
    return Severity[value.upper()]
