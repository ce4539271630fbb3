"""The public names: all there, each cheap until it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import forensics


@pytest.mark.parametrize("name", forensics.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(forensics, name) is not None
    assert name in dir(forensics)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    seen = {}
    for node in ast.walk(ast.parse(Path(forensics.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forensics"):
            for alias in node.names:
                renamed = f":{alias.name}" if alias.asname else ""
                seen[alias.asname or alias.name] = f"{node.module}{renamed}"
    assert seen == forensics._ORIGIN
    assert sorted(seen) == sorted(forensics.__all__)


def test_reading_names_do_not_load_torch() -> None:
    code = (
        "import sys, forensics; "
        "[getattr(forensics, n) for n, m in forensics._ORIGIN.items() "
        " if 'record' not in m and 'replay' not in m]; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
    assert not heavy & set(ast.literal_eval(done.stdout))
