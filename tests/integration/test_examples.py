"""The notebooks in examples/ do what they say, cell by cell."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def executed(notebook: Path) -> list[Any]:
    """What the last expression of each code cell comes to, as a notebook would show it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []  # else they grow old
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), notebook.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), names))
    return shown


def test_the_notebook_shows_the_verdict_the_picture_and_the_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLES)
    diagnosis, figure, evidence, loss, size = executed(EXAMPLES / "reading-a-run.ipynb")
    assert "Loss is NaN at step 30" in diagnosis._repr_html_()
    assert len(figure.axes) > 1
    assert evidence[0][0] == "loss"
    assert 30 in evidence[0][1]
    assert loss == "1.88 at the end, 0 cells not written"
    assert size.endswith(" kB")


def test_every_example_is_executed_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for example in EXAMPLES.iterdir():
        assert f'"{example.name}"' in tests, example.name
