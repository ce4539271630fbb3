"""The public names: all there, each cheap until it is used."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval

import pytest

import forensics


@pytest.mark.parametrize("name", forensics.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(forensics, name) is not None
    assert name in dir(forensics)


def test_each_name_has_one_home() -> None:
    assert sorted(forensics._ORIGIN) == sorted(forensics.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = forensics.nope


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert forensics.__version__ == version("forensics")


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import forensics; "
        "print(sorted(m for m in set(sys.modules) - before if '.' not in m and m != 'forensics'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "pyarrow", "pandas", "torch", "click", "matplotlib", "rich", "json"}
    assert not heavy & set(literal_eval(done.stdout))
