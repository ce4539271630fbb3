"""The command that a report ends with: it can be run, and it shows more than the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.next_command import (
    REPLAYED,
    asks_for_a_recipe,
    command_for_exception,
    next_command,
)
from forensics.diagnose.rules import RULES
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Ended, Manifest
from forensics.runlog.run import CheckpointInfo, Run
from tests.unit.diagnose.snapshot_runs import noisy, store
from tests.unit.diagnose.step_logs import calm, run_of

RECIPE = {"name": "bad-sample", "file": "", "config": {"steps": 60}}


def root(rule: str = "nonfinite-loss", step: int = 30) -> Finding:
    return Finding(
        rule=rule, severity=Severity.CRITICAL, message="it", first_step=step, last_step=step
    )


def run(home: Path, *, steps: list[int] | None = None, **parts: Any) -> Signals:
    """A calm run of 60 steps in a directory, with snapshots at some of them."""
    params = None
    if steps is not None:
        norms = noisy(np.random.default_rng(0), len(steps))
        params = store({"grad_l2": norms}, steps=np.array(steps))
    signals = run_of(calm(60), params=params)
    made: Run = replace(signals.run, path=home, **parts)
    return Signals(made)


def checkpoint(home: Path, step: int, healthy: bool | None = True) -> CheckpointInfo:
    return CheckpointInfo(step, home / "checkpoints" / f"step-{step:08d}.pt", healthy, {})


def test_checkpoints_before_the_root_are_replayed(tmp_path: Path) -> None:
    states = (checkpoint(tmp_path, 20), checkpoint(tmp_path, 40, healthy=False))
    signals = run(tmp_path, steps=[30], checkpoints=states)
    assert next_command(signals, root()) == f"forensics bisect --ckpt-dir {tmp_path}/checkpoints"
    assert next_command(signals, root("clip-before-unscale")).startswith("forensics bisect ")
    assert next_command(signals, root("frozen-parameter")).startswith("forensics params ")


@pytest.mark.parametrize("states", [[(40, True)], [(20, False)]])
def test_a_state_after_the_root_or_a_bad_one_starts_no_replay(
    tmp_path: Path, states: list[tuple[int, bool]]
) -> None:
    made = tuple(checkpoint(tmp_path, *state) for state in states)
    command = next_command(run(tmp_path, steps=[30], checkpoints=made), root())
    assert command == f"forensics params {tmp_path} --step 30"


def test_what_was_bisected_already_is_not_bisected_again(tmp_path: Path) -> None:
    states = (checkpoint(tmp_path, 20),)
    done = run(tmp_path, checkpoints=states, bisection={"bisection": {"status": "located"}})
    assert next_command(done, root()) == "forensics rules nonfinite-loss"
    partial = run(tmp_path, checkpoints=states, bisection={"bisection": {"status": "partial"}})
    assert next_command(partial, root()).startswith("forensics bisect ")


def test_parameters_are_offered_where_snapshots_show_that_step(tmp_path: Path) -> None:
    assert next_command(run(tmp_path, steps=[0, 30]), root()).endswith("--step 30")
    assert next_command(run(tmp_path, steps=[0, 20]), root()) == "forensics rules nonfinite-loss"
    many = run(tmp_path, steps=list(range(0, 27, 3)))
    assert next_command(many, root()) == f"forensics params {tmp_path} --step 30"
    assert next_command(many, root("broken-log")) == "forensics rules broken-log"


def test_a_recipe_of_ours_without_checkpoints_is_recorded_again_with_some(tmp_path: Path) -> None:
    signals = run(tmp_path, manifest=Manifest(recipe=RECIPE))
    assert next_command(signals, root(step=2_031)) == (
        f"forensics record bad-sample --config {tmp_path}/run.json --checkpoint-every 100 "
        f"--out {tmp_path}-again"
    )


def test_a_run_that_went_bad_early_is_trained_again_from_its_start(tmp_path: Path) -> None:
    signals = run(tmp_path, manifest=Manifest(recipe=RECIPE))
    assert next_command(signals, root(step=31)) == f"forensics bisect {tmp_path}"
    late = run(tmp_path, manifest=Manifest(recipe=RECIPE), checkpoints=(checkpoint(tmp_path, 50),))
    assert next_command(late, root(step=31)) == f"forensics bisect {tmp_path}"


def test_a_recipe_of_a_file_is_named_by_the_path_it_was_recorded_from(tmp_path: Path) -> None:
    file = tmp_path / "my train.py"
    recipe = {**RECIPE, "file": str(file)}
    states = (checkpoint(tmp_path, 20),)
    signals = run(tmp_path, manifest=Manifest(recipe=recipe), checkpoints=states)
    bare = f"forensics bisect --ckpt-dir {tmp_path}/checkpoints"
    assert next_command(signals, root()) == bare
    file.write_text("")
    assert next_command(signals, root()) == f"{bare} --recipe '{file}:bad-sample'"
    without = run(tmp_path, manifest=Manifest(recipe=recipe))
    command = f"forensics bisect {tmp_path} --recipe '{file}:bad-sample'"
    assert next_command(without, root()) == command


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {**RECIPE, "file": "/home/her/my_train.py"},
        {**RECIPE, "config": {}},
        {**RECIPE, "name": "x; rm -rf /"},
        {**RECIPE, "name": "--list"},
    ],
)
def test_a_recipe_that_may_not_be_there_is_not_offered(
    tmp_path: Path, recipe: dict[str, Any]
) -> None:
    signals = run(tmp_path, manifest=Manifest(recipe=recipe))
    assert next_command(signals, root()) == "forensics rules nonfinite-loss"


def test_a_path_with_a_space_is_quoted(tmp_path: Path) -> None:
    home = tmp_path / "my run"
    home.mkdir()
    signals = run(home, checkpoints=(checkpoint(home, 0),))
    assert next_command(signals, root()).endswith(f"'{home}/checkpoints'")


def test_a_loop_of_ones_own_is_told_what_a_recipe_would_bring(tmp_path: Path) -> None:
    own = run(tmp_path, steps=[0, 30], manifest=Manifest())
    asked = asks_for_a_recipe(own, root())
    assert f"`forensics bisect {tmp_path} --recipe FILE:NAME`" in asked
    assert next_command(own, root()) == f"forensics params {tmp_path} --step 30"  # can be run now
    no_recipe = {"bisection": {"status": "not-bisectable"}}
    assert asks_for_a_recipe(run(tmp_path, manifest=Manifest(), bisection=no_recipe), root())


def test_a_recipe_is_asked_for_only_where_one_would_bring_something(tmp_path: Path) -> None:
    located = {"bisection": {"status": "located"}}
    assert not asks_for_a_recipe(run(tmp_path), root())  # a log alone
    assert not asks_for_a_recipe(run(tmp_path, manifest=Manifest(recipe=RECIPE)), root())
    own = run(tmp_path, manifest=Manifest(), bisection=located)
    assert not asks_for_a_recipe(own, root())
    unbisected = run(tmp_path, manifest=Manifest())
    assert not asks_for_a_recipe(unbisected, root("loop-order"))
    assert not asks_for_a_recipe(unbisected, root(step=2_031))  # no state before, and far
    near = run(tmp_path, manifest=Manifest(), checkpoints=(checkpoint(tmp_path, 2_000),))
    assert asks_for_a_recipe(near, root(step=2_031))


def test_the_snapshots_hold_nothing_of_one_rank(tmp_path: Path) -> None:
    signals = run(tmp_path, steps=[0, 30], manifest=Manifest(world_size=2))
    assert next_command(signals, root("rank-divergence")) == "forensics rules rank-divergence"


def test_the_rules_named_here_exist() -> None:
    assert {rule.id for rule in RULES} >= REPLAYED


def test_a_run_that_raised_is_bisected_where_it_can_be_made_again(tmp_path: Path) -> None:
    ended = Ended(how="exception", step=60, message="IndexError: Target 5 is out of bounds.")
    made = run(tmp_path, manifest=Manifest(recipe=RECIPE, ended=ended))
    assert command_for_exception(made) == f"forensics bisect {tmp_path}"
    saved = run(tmp_path, manifest=Manifest(ended=ended), checkpoints=(checkpoint(tmp_path, 20),))
    assert command_for_exception(saved) == f"forensics bisect --ckpt-dir {tmp_path}/checkpoints"
    shown = run(tmp_path, manifest=Manifest(ended=ended), steps=list(range(0, 60, 3)))
    assert command_for_exception(shown) == f"forensics params {tmp_path} --step 60"
    assert command_for_exception(run(tmp_path, manifest=Manifest(ended=ended))) == ""
    whole = Manifest(recipe=RECIPE, ended=Ended(how="finished"))
    assert command_for_exception(run(tmp_path, manifest=whole)) == ""
