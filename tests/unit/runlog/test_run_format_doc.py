"""The run format is written down, and the document says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.runlog.activations import LAYOUT as ACTIVATIONS
from forensics.runlog.manifest import Manifest
from forensics.runlog.params import KINDS
from forensics.runlog.params import LAYOUT as PARAMS
from forensics.runlog.schema import CANONICAL, EXTRA, SCHEMA_VERSION, Kind

DOCUMENT = (Path(__file__).parents[3] / "docs" / "run-format.md").read_text(encoding="utf-8")
TYPES = {Kind.INT: "int64", Kind.FLOAT: "float64", Kind.FLAG: "0 or 1", Kind.TEXT: "text"}


@pytest.mark.parametrize("column", [*CANONICAL, *EXTRA], ids=lambda column: column.name)
def test_every_column_is_there_with_its_type(column: object) -> None:
    name, kind = column.name, column.kind  # type: ignore[attr-defined]
    (line,) = [row for row in DOCUMENT.splitlines() if row.startswith("|") and f"`{name}`" in row][
        :1
    ]
    assert f"| {TYPES[kind]} |" in line


def test_canonical_columns_are_in_order() -> None:
    places = [DOCUMENT.index(f"| `{column.name}` |") for column in CANONICAL]
    assert places == sorted(places)


@pytest.mark.parametrize("name", [*Manifest().to_json(), *KINDS, *PARAMS.statistics])
def test_every_field_kind_and_statistic_is_there(name: str) -> None:
    assert f"`{name}`" in DOCUMENT


@pytest.mark.parametrize("layout", [PARAMS, ACTIVATIONS], ids=["params", "activations"])
def test_the_types_of_statistics_are_right(layout: object) -> None:
    floats = ", ".join(f"`{name}`" for name in layout.floats)  # type: ignore[attr-defined]
    counts = ", ".join(f"`{name}`" for name in layout.counts)  # type: ignore[attr-defined]
    assert f"{floats} float32 · {counts} int64" in DOCUMENT


def test_the_version_is_the_codes() -> None:
    assert f"run format\n**{SCHEMA_VERSION}**" in DOCUMENT
