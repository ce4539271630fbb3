"""``docs/dependencies.md`` gives a reason for each dependency, and for nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w-]+)`(?: \(extra `(\w+)`\))? \| ([^|]+) \|", re.MULTILINE)
NAME = re.compile(r"[\w-]+")


def declared() -> dict[str, set[str]]:
    """Packages by the heading they belong under."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = {extra: {NAME.match(line)[0] for line in lines} for extra, lines in extras.items()}
    development = names.pop("dev") - {"forensics"}
    return {
        "Always installed": {NAME.match(line)[0] for line in project["dependencies"]},
        "Extras": set().union(*names.values()) - {"forensics"},
        "For development": development,
    }


def test_each_dependency_has_its_reason_under_its_heading() -> None:
    text = (PROJECT / "docs" / "dependencies.md").read_text()
    parts = dict(
        zip(*[iter(re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:])] * 2, strict=True)
    )
    for heading, names in declared().items():
        told = {name for name, _, reason in ROW.findall(parts[heading]) if reason.strip()}
        assert told == names, heading


def test_an_extra_is_named_as_it_is_installed() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    text = (PROJECT / "docs" / "dependencies.md").read_text()
    for package, extra, _ in ROW.findall(text):
        if extra:
            assert any(NAME.match(line)[0] == package for line in extras[extra]), package
