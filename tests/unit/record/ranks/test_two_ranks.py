"""Two real ranks under gloo: what each records of itself, and what is told of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from forensics.diagnose.bisection_result import BisectionResult
from forensics.diagnose.finding import Finding, Severity
from forensics.replay.bisect import bisect_run
from forensics.replay.session import open_session
from forensics.runlog.run import Run, load_run
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps
from tests.unit.record.ranks import ranks_recipe
from tests.unit.record.ranks.two_ranks import BAD, data, model

RECIPE = f"{ranks_recipe.__file__}:shares"


def both(run: Run) -> tuple[StepTable, StepTable]:
    """The logs of rank 0 and rank 1."""
    assert run.rank_zero is not None
    (one,) = run.ranks
    return run.rank_zero, one


def root_of(run: Run) -> Finding:
    diagnosis = run.diagnose()
    assert diagnosis.verdict.root is not None
    return diagnosis.findings[diagnosis.verdict.root]


# -- a loop of one's own ------------------------------------------------------------------------


def test_one_run_directory_that_says_how_many_trained(runs: Path) -> None:
    run = load_run(runs / "plain" / "nan")
    assert run.manifest is not None
    assert (run.manifest.world_size, run.manifest.rank) == (2, 0)
    assert [p.name for p in run.manifest.parameters] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert len(run.steps) == 10
    assert [mark.ended for mark in run.rank_marks] == ["finished", "finished"]
    assert not (runs / "plain" / "nan" / "run.lock").exists()


def test_each_rank_logs_its_own_loss_and_gradients_before_the_reduction(runs: Path) -> None:
    """Step 0 is computed here once more, rank by rank, without any reduction."""
    run = load_run(runs / "plain" / "parts")
    gradients = []
    for rank, table in enumerate(both(run)):
        alone = model()
        for part in range(3):
            inputs, targets = data(part, rank)
            loss = nn.functional.mse_loss(alone(inputs), targets)
            (loss / 3).backward()
        own = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None])
        gradients.append(own)
        assert table["loss"][0] == pytest.approx(loss.item(), rel=1e-6)
        assert table["grad_l2_local"][0] == pytest.approx(own.norm().item(), rel=1e-5)
        assert table["grad_local_nonfinite"][0] == 0
    reduced = (sum(gradients) / 2).norm().item()  # type: ignore[union-attr]
    assert run.steps["grad_l2_pre_clip"][0] == pytest.approx(reduced, rel=1e-5)
    for table in both(run):
        assert table["grad_l2_pre_clip"].tolist() == run.steps["grad_l2_pre_clip"].tolist()


@pytest.mark.parametrize(("name", "guilty"), [("nan", 1), ("zero", 0)])
def test_the_rank_that_goes_bad_alone_is_told(runs: Path, name: str, guilty: int) -> None:
    run = load_run(runs / "plain" / name)
    tables = both(run)
    assert math.isnan(tables[guilty]["loss"][BAD])
    assert tables[guilty]["grad_local_nonfinite"][BAD] > 0
    sound = tables[1 - guilty]
    assert sound["grad_local_nonfinite"][BAD] == 0
    assert np.isfinite(sound["grad_l2_local"][BAD])
    assert not np.isfinite(sound["grad_l2_pre_clip"][BAD])  # the reduction has spread it
    root = root_of(run)
    assert (root.rule, root.subject, root.first_step) == (
        "rank-divergence",
        f"rank {guilty}",
        BAD,
    )


def test_the_first_bad_parameter_has_its_plain_name(runs: Path) -> None:
    column = both(load_run(runs / "plain" / "nan"))[1].columns["first_nonfinite"]
    assert column.text_at(BAD) in {"2.weight", "2.bias"}  # nearest the loss


def test_replicas_that_stay_alike_log_the_same_digest(runs: Path) -> None:
    run = load_run(runs / "plain" / "nan")
    own = run.steps.columns["param_digest"]
    theirs = run.ranks[0].columns["param_digest"]
    assert [own.text_at(i) for i in range(10)] == [theirs.text_at(i) for i in range(10)]
    assert "replica-drift" not in {finding.rule for finding in run.diagnose().findings}


def test_a_run_that_goes_on_moves_the_rows_of_every_rank_aside(runs: Path) -> None:
    run = load_run(runs / "plain" / "again")
    for table in (run.steps, *both(run)):
        assert table.step.tolist() == list(range(10))
    assert (runs / "plain" / "again" / "superseded" / "1" / "ranks" / "rank-00001.csv").exists()


def test_a_hook_of_the_loop_is_respected_and_can_measure(runs: Path) -> None:
    plain, own, measured = (
        load_run(runs / "plain" / name) for name in ("parts", "own-hook", "measured-hook")
    )
    assert own.manifest is not None
    assert any("communication hook of its own" in clause for clause in own.manifest.missing)
    assert not own.ranks[0].has("grad_l2_local")
    assert measured.ranks[0].has("grad_l2_local")
    assert measured.manifest is not None
    assert measured.manifest.missing == ()
    assert own.steps["loss"].tolist() == measured.steps["loss"].tolist()
    assert plain.ranks[0].has("grad_l2_local")


def test_a_recorder_on_rank_zero_alone_waits_for_nobody(runs: Path) -> None:
    run = load_run(runs / "plain" / "alone")
    assert len(run.steps) == 10
    assert run.ranks == ()
    assert (
        run.steps["loss"].tolist() == load_run(runs / "plain" / "own-hook").steps["loss"].tolist()
    )


@pytest.mark.parametrize("name", ["killed", "raised"])
def test_a_lost_rank_leaves_a_readable_run_that_names_it(runs: Path, name: str) -> None:
    run = load_run(runs / name / name)
    assert [len(table) for table in (run.steps, *both(run))] == [BAD] * 3
    waiting, lost = run.rank_marks
    assert (waiting.step, lost.step) == (BAD, BAD)
    assert waiting.place > lost.place
    told = [f for f in run.diagnose().findings if f.rule == "lost-rank"]
    assert [(f.subject, f.first_step) for f in told] == [("rank 1", BAD)]
    if name == "raised":
        assert lost.message == "ValueError: no such shard"
        assert told[0].severity is Severity.ERROR
        assert "no such shard" in told[0].message


# -- a recipe, and its bisection in one process ---------------------------------------------------


@pytest.fixture(scope="module")
def bisected(runs: Path) -> BisectionResult:
    return bisect_run(runs / "recorded" / "whole", recipe=RECIPE, further_steps=2)


def test_the_command_line_trains_all_ranks_and_refuses_on_all(runs: Path) -> None:
    codes = json.loads((runs / "recorded" / "codes.json").read_text())
    assert codes == [0, 2, 0, 0]
    output = (runs / "output.txt").read_text()
    assert "all 2 ranks train on the same data" in output


def test_all_ranks_skip_where_the_loss_of_one_is_bad(runs: Path) -> None:
    run = load_run(runs / "recorded" / "whole")
    step = ranks_recipe.BAD_STEP
    assert run.steps["skipped"].tolist() == [i == step for i in range(16)]
    assert run.steps.columns["skip_reason"].text_at(step) == "nonfinite_loss:rank 1"
    assert np.isfinite(run.steps["loss"][step])
    assert math.isnan(run.ranks[0]["loss"][step])


ROUNDING = 1e-6
"""Relative. Mostly the bits agree; on a loaded machine one norm in many runs was off by 1e-8."""


def test_a_resume_on_all_ranks_is_the_run_again(runs: Path) -> None:
    """Dropout draws from each rank's own generator, which rank 0's checkpoint holds."""
    before = read_steps(runs / "recorded" / "before.csv")
    after = load_run(runs / "recorded" / "whole")
    assert after.manifest is not None
    assert [part.start_step for part in after.manifest.segments] == [0, 10]
    for name in ("loss", "grad_l2_pre_clip"):
        assert np.allclose(before[name], after.steps[name], ROUNDING, 0, equal_nan=True)


def test_one_process_finds_rank_sample_and_operator(bisected: BisectionResult) -> None:
    assert bisected.first_bad_step == ranks_recipe.BAD_STEP
    assert (bisected.rank, bisected.bad_ranks) == (1, (1,))
    assert bisected.samples == (ranks_recipe.BAD_SAMPLE,)
    assert bisected.batch_size == 2 * ranks_recipe.SAMPLES
    assert bisected.origin is not None
    assert bisected.origin.operator == "aten.log"
    assert bisected.reproduces
    assert any("rank 1's batch" in sentence for sentence in bisected.remedy)


@pytest.mark.parametrize("from_checkpoint", [True, False])
def test_one_process_replays_the_ranks_row_for_row(runs: Path, from_checkpoint: bool) -> None:
    """Losses of both ranks, dropout, BatchNorm and the reduction, up to the end of the run."""
    run = load_run(runs / "recorded" / "whole")
    with open_session(run, recipe=RECIPE, tolerance=ROUNDING, say=lambda _: None) as session:
        first = session.go_to(10) if from_checkpoint else 0
        assert first == (10 if from_checkpoint else 0)
        for step in range(first, 16):
            replayed = session.run_step(check_state=False)
            assert session.departure(replayed) is None, f"step {step}"
            (loop,) = session._loops.values()
            own = loop.state.losses  # type: ignore[union-attr]
            recorded = [float(table["loss"][step]) for table in both(run)]
            assert np.allclose([own[0], own[1]], recorded, ROUNDING, 0, equal_nan=True)


def test_fp16_under_a_loss_scale_is_replayed_row_for_row(runs: Path) -> None:
    run = load_run(runs / "recorded" / "fp16")
    with open_session(run, recipe=RECIPE, tolerance=ROUNDING, say=lambda _: None) as session:
        session.start()
        for step in range(8):
            assert session.departure(session.run_step(check_state=False)) is None, f"step {step}"
