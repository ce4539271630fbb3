"""A loop of one's own, from three changed lines to the bad sample: examples/own_loop.py."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus
from forensics.replay.bisect import bisect_run
from forensics.runlog.run import load_run

SCRIPT = Path(__file__).parents[2] / "examples" / "own_loop.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "run"
    runpy.run_path(str(SCRIPT))["train"](folder)
    return folder


def test_the_script_is_recorded(run: Path) -> None:
    steps = load_run(run).steps
    assert steps.step.tolist() == list(range(60))
    assert steps.present("grad_l2_post_clip").all()
    assert [c.step for c in load_run(run).checkpoints] == [0, 20, 40, 60]


def test_the_bisection_names_the_operator_and_the_sample(run: Path) -> None:
    result = bisect_run(run, recipe=f"{SCRIPT}:loudness", further_steps=5)
    assert result.status is BisectStatus.LOCATED
    assert result.first_bad_step == 41
    assert result.origin is not None
    assert result.origin.operator == "aten.log"
    assert result.samples == (5,)
    assert result.reproduces is True
    assert result.replayed_from == 40
    # The reference loop makes the rows again. It skips the bad step, which the script takes.
    assert not load_run(run).steps["skipped"][41]
    assert (result.departure, result.faithful_until) == (None, 41)


def test_the_script_goes_on_where_it_was(run: Path) -> None:
    runpy.run_path(str(SCRIPT))["train"](run)
    manifest = load_run(run).manifest
    assert manifest is not None
    assert [segment.start_step for segment in manifest.segments] == [0, 40]


def test_without_the_recorders_lines_it_is_the_plain_loop() -> None:
    marked = re.findall(r"# <-- (\d)", SCRIPT.read_text(encoding="utf-8"))
    assert marked == ["1", "2", "3"]
    body = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    (train,) = (f for f in body.body if isinstance(f, ast.FunctionDef) and f.name == "train")
    calls = [n.func.attr for n in ast.walk(train) if _calls_the_recorder(n)]  # type: ignore[attr-defined]
    assert sorted(calls) == ["end_step", "gradients", "resume"]


def _calls_the_recorder(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "recorder"
    )
