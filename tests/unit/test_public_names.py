"""The public names: each is there, lazily, and all that the verbs need is among them."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forensics


@pytest.mark.parametrize("name", forensics.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(forensics, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = forensics.nothing


def test_importing_the_package_imports_none_of_its_parts() -> None:
    code = "import sys, forensics; print([m for m in sys.modules if m.startswith('forensics.')])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["compare", "params", "scan"])
def test_every_verb_has_its_renderers_among_them(verb: str) -> None:
    assert {f"render_{verb}_{form}" for form in ("json", "markdown", "text")} <= set(
        forensics.__all__
    )
