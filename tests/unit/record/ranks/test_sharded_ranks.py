"""Sharded models on real ranks under gloo: their norms, own gradients, states and losses."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forensics.diagnose.finding import Finding, Severity
from forensics.errors import InputError
from forensics.record.checkpoints import list_checkpoints, load_checkpoint
from forensics.record.ranks.distributed_folder import DistributedFolder
from forensics.replay.bisect import bisect_run
from forensics.replay.bisection import State
from forensics.replay.checkpoint_health import examine_state, judge_state
from forensics.runlog.checkpoint_files import bad_tensors
from forensics.runlog.run import Run, load_run
from tests.unit.record.ranks.launching import launch
from tests.unit.record.ranks.sharded_ranks import BAD, STEPS, Block, plain_model

NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all ranks recorded: made once for the file."""
    folder = tmp_path_factory.mktemp("sharded")
    launch("record.ranks.sharded_ranks", folder)
    return folder


def found(made: Path, scenario: str, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((made / scenario / f"found-{rank}.json").read_text())
    return told


def root_of(run: Run) -> Finding:
    diagnosis = run.diagnose()
    assert diagnosis.verdict.root is not None
    return diagnosis.findings[diagnosis.verdict.root]


# -- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("two", "whole"), ("two", "nan"), ("two", "scaled"), ("four", "hybrid")],
)
def test_the_norm_is_torchs_own_on_every_rank(made: Path, scenario: str, name: str) -> None:
    for rank in range(2 if scenario == "two" else 4):
        norms = np.array(found(made, scenario, rank)[name])
        assert np.allclose(norms[:, 0], norms[:, 1], rtol=1e-6, atol=0, equal_nan=True)
        assert norms[:, 0].tolist() == pytest.approx(
            np.array(found(made, scenario)[name])[:, 0].tolist(), rel=0, abs=0, nan_ok=True
        )
        assert np.isnan(norms[BAD, 0]) == (name in ("nan", "hybrid"))


@pytest.mark.parametrize(("scenario", "name"), [("two", "tensor"), ("four", "both")])
def test_under_tensor_parallelism_it_is_that_of_one_process(
    made: Path, scenario: str, name: str
) -> None:
    """Partial gradients are added up, replicated ones count once, with FSDP around it or not."""
    ours, torchs, alone = np.array(found(made, scenario)[name]).T
    assert np.allclose(ours, torchs, rtol=1e-6, atol=0)
    assert np.allclose(ours, alone, rtol=1e-5, atol=0)


@pytest.mark.parametrize("place", ["two/first-True", "two/first-False", "four/first"])
def test_the_first_fsdp_has_norms_of_the_whole_and_says_what_it_has_not(
    made: Path, place: str
) -> None:
    scenario, name = place.split("/")
    for rank in range(2 if scenario == "two" else 4):
        ours, fsdps, alone = np.array(found(made, scenario, rank)[name]).T
        assert np.allclose(ours, fsdps, rtol=1e-6, atol=0, equal_nan=True)
        assert np.allclose(ours, alone, rtol=1e-5, atol=0, equal_nan=True)
        assert np.isnan(ours[3])
    run = load_run(made / place)
    taken = run.steps["skipped"] == 0
    assert taken.tolist() == [True, True, True, False]
    assert np.allclose(run.steps["grad_l2_post_clip"][taken], 0.1, rtol=1e-5)
    assert np.allclose(run.steps["update_l2"][taken], 1e-3, rtol=1e-4)  # rate and clip
    assert (run.params, run.checkpoints) == (None, ())
    assert run.manifest is not None
    assert run.manifest.sharding == "FullyShardedDataParallel"
    assert sorted(clause.partition(":")[0] for clause in run.manifest.missing) == [
        "local gradient norms",
        "snapshots and states",
    ]
    elements = sum(math.prod(p.shape) for p in run.manifest.parameters)
    assert elements == sum(p.numel() for p in Block().parameters())
    root = root_of(run)
    assert (root.rule, root.first_step) == ("rank-divergence", 3)


def test_replicas_outside_of_a_mesh_count_once(made: Path) -> None:
    """torch's own norm refuses gradients of several meshes."""
    for rank in range(4):
        norm, alone, weights = found(made, "four", rank)["mixed"]
        assert norm == pytest.approx(alone, rel=1e-5)
    steps = load_run(made / "four" / "mixed").steps
    assert steps["param_l2"][0] == pytest.approx(weights, rel=1e-6)


def test_the_norm_after_the_clip_and_that_of_the_weights_are_of_all_ranks(made: Path) -> None:
    for path in (made / "two" / "nan", made / "two" / "tensor", made / "four" / "both"):
        steps = load_run(path).steps
        taken = ~steps["skipped"].astype(bool)
        assert np.allclose(steps["grad_l2_post_clip"][taken], 0.5, rtol=1e-5)
        assert (steps["update_l2"][taken] > 0).all()
    own = math.sqrt(sum(p.norm().item() ** 2 for p in plain_model().parameters()))
    assert load_run(made / "two" / "nan").steps["param_l2"][0] == pytest.approx(own, rel=1e-6)
    assert load_run(made / "four" / "hybrid").steps["param_l2"][0] == pytest.approx(own, rel=1e-6)


def test_a_rank_without_a_gradient_holds_nobody_up(made: Path) -> None:
    one, other = (found(made, "two", rank)["lacking"] for rank in range(2))
    assert one == other
    assert len(one) == 4
    assert one[2][0] > 0


def test_a_norm_that_overflows_is_taken_again(made: Path) -> None:
    for rank in range(2):
        overflowed, nonfinite, total, elements, alongside = found(made, "two", rank)["overflow"]
        assert overflowed
        assert nonfinite == {}
        assert total == pytest.approx(math.sqrt(elements), rel=1e-6)
        assert alongside == [rank]  # what is read along is each rank's own


def test_a_recorder_on_rank_zero_alone_waits_for_nobody(made: Path) -> None:
    run = load_run(made / "two" / "alone")
    assert len(run.steps) == 3
    assert not run.steps.has("grad_l2_pre_clip")
    assert run.manifest is not None
    (clause,) = run.manifest.missing
    assert "rank 1 has made no Recorder" in clause
    assert "make one on every rank; until then gradients() returns 0" in clause
    assert found(made, "two")["alone"] == [0.0] * 3  # a clip by it changes nothing


def test_where_options_differ_all_ranks_do_what_rank_zero_was_asked_for(made: Path) -> None:
    for rank in range(2):
        norms = np.array(found(made, "two", rank)["others"])
        assert np.allclose(norms[:, 0], norms[:, 1], rtol=1e-6, atol=0)
    run = load_run(made / "two" / "others")
    assert run.manifest is not None
    assert run.manifest.missing == ()
    own = math.sqrt(sum(p.norm().item() ** 2 for p in plain_model().parameters()))
    assert run.steps["param_l2"][0] == pytest.approx(own, rel=1e-6)
    assert run.params is not None
    assert run.params.steps.tolist() == [0, 2]
    assert [info.step for info in run.checkpoints] == [0, 2, 3]


def test_where_measuring_fails_on_one_rank_all_have_torchs_norm(made: Path) -> None:
    """Before the sum over the ranks, in it and after it; nobody waits for what never comes."""
    for rank in range(2):
        ours, torchs = np.array(found(made, "two", rank)["failing"]).T
        assert np.allclose(ours, torchs, rtol=1e-6, atol=0)
        assert len(ours) == 5
    run = load_run(made / "two" / "failing")
    measured = run.steps.present("grad_l2_pre_clip").tolist()
    assert measured == [True, False, False, True, True]  # after the sum rank 0 knows it


# -- what is recorded -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["two/nan", "four/hybrid"])
def test_the_rank_that_goes_bad_alone_is_named(made: Path, place: str) -> None:
    run = load_run(made / place)
    assert run.manifest is not None
    assert [p.name for p in run.manifest.parameters] == NAMES
    bad = run.ranks[0]
    assert bad["grad_local_nonfinite"][BAD] > 0
    assert bad.columns["first_nonfinite"].text_at(BAD) == "4.bias"  # nearest the loss
    assert run.rank_zero is not None
    for table in (run.rank_zero, *run.ranks[1:]):
        assert table["grad_local_nonfinite"][BAD] == 0
        assert np.isfinite(table["grad_l2_local"][BAD])
        assert math.isnan(table["grad_l2_pre_clip"][BAD])
    root = root_of(run)
    assert (root.rule, root.subject, root.first_step) == ("rank-divergence", "rank 1", BAD)


def test_under_tensor_parallelism_they_are_the_parts_that_a_rank_holds(made: Path) -> None:
    run = load_run(made / "two" / "tensor")
    for table in (run.rank_zero, *run.ranks):
        assert table is not None
        assert (table["grad_l2_local"] > 0).all()
        assert (table["grad_l2_local"] < 2 * run.steps["grad_l2_pre_clip"]).all()
        assert (table["grad_local_nonfinite"] == 0).all()


def test_own_gradients_are_those_before_they_are_scattered(made: Path) -> None:
    """Under FSDP the mean of two ranks' gradients is reduced: their norms bracket that of it."""
    run = load_run(made / "two" / "whole")
    assert run.rank_zero is not None
    own = [table["grad_l2_local"] for table in (run.rank_zero, *run.ranks)]
    reduced = run.steps["grad_l2_pre_clip"]
    assert (reduced <= (own[0] + own[1]) / 2 * (1 + 1e-6)).all()
    assert (reduced >= abs(own[0] - own[1]) / 2 * (1 - 1e-6)).all()


def test_snapshots_are_of_whole_tensors(made: Path) -> None:
    run = load_run(made / "two" / "nan")
    assert run.params is not None
    rows = run.params.at(0)
    values = {
        statistic: dict(zip(rows.names[:6], rows.values[statistic].tolist()[:6], strict=True))
        for statistic in ("value_l2", "grad_l2", "update_l2")
    }
    assert list(rows.names[:6]) == NAMES
    assert set(rows.kinds[:6]) == {"param"}
    for name, parameter in plain_model().named_parameters():
        assert values["value_l2"][name] == pytest.approx(parameter.norm().item(), rel=1e-6)
    for statistic, column in (("grad_l2", "grad_l2_pre_clip"), ("update_l2", "update_l2")):
        total = math.hypot(*values[statistic].values())
        assert total == pytest.approx(run.steps[column][0], rel=1e-5)
    bad = run.params.at(BAD)
    counts = dict(zip(bad.names[:6], bad.values["grad_nonfinite"].tolist()[:6], strict=True))
    assert [counts[name] for name in NAMES] == [30, 5, 5, 5, 5, 1]


# -- states ---------------------------------------------------------------------------------------


def test_a_resume_on_all_ranks_is_the_run_again(made: Path) -> None:
    """Dropout, BatchNorm's buffers, the schedule and the moments go on where they were."""
    whole, parts = (load_run(made / "two" / name) for name in ("whole", "parts"))
    assert parts.manifest is not None
    assert [segment.start_step for segment in parts.manifest.segments] == [0, 3]
    for name in ("loss", "lr", "grad_l2_pre_clip"):
        assert np.allclose(whole.steps[name], parts.steps[name], rtol=1e-6, atol=0)
    assert np.allclose(whole.ranks[0]["loss"], parts.ranks[0]["loss"], rtol=1e-6, atol=0)


def test_older_states_go_once_the_next_is_whole_and_healthy(made: Path) -> None:
    folder = made / "two" / "whole" / "checkpoints"
    infos = list_checkpoints(folder)
    assert [(info.step, info.healthy) for info in infos] == [(6, True), (STEPS, True)]
    assert not list(folder.glob(".step-*"))
    manifest = load_run(made / "two" / "whole").manifest
    assert manifest is not None
    assert manifest.checkpoints["last_healthy"] == STEPS


def test_a_bad_state_is_kept_aside_and_replaces_nothing(made: Path) -> None:
    """Of keep=last:2 both healthy ones stay, however many bad ones follow."""
    infos = list_checkpoints(made / "two" / "poisoned" / "checkpoints")
    assert [info.step for info in infos if info.healthy] == [0, 3]
    bad = [info for info in infos if not info.healthy]
    assert bad[0].path.name == "step-00000006.nonfinite"
    names = {tensor.name: tensor for tensor in bad_tensors(bad[0].health)}
    weight = names["model.0.weight"]
    assert (weight.kind, weight.parameter, weight.nan, weight.numel) == ("param", "0.weight", 1, 30)


def test_states_are_found_and_judged_without_a_recipe(made: Path) -> None:
    """By the health beside them, and as exactly by looking into them."""
    run_dir = made / "two" / "poisoned"
    for info in list_checkpoints(run_dir / "checkpoints"):
        expected = State.GOOD if info.healthy else State.BAD
        assert judge_state(info.path).state is expected
        assert judge_state(info.path, verify=True).state is expected
    last = list_checkpoints(run_dir / "checkpoints")[-1].path
    assert {t.parameter for t in examine_state(last).bad if t.kind == "param"} == {"0.weight"}
    healthy = list_checkpoints(made / "two" / "whole" / "checkpoints")[-1].path
    examined = examine_state(healthy)
    assert (examined.bad, examined.missing) == ((), ())  # no scaler was used: none is missing
    result = bisect_run(run_dir)
    assert [(c.step, c.verdict) for c in result.checkpoints][:1] == [(0, "good")]
    assert any(c.verdict == "bad" for c in result.checkpoints)


@pytest.mark.parametrize("place", ["two/whole", "four/hybrid", "four/both"])
def test_a_state_of_several_ranks_opens_whole_in_one_process(made: Path, place: str) -> None:
    info = list_checkpoints(made / place / "checkpoints")[-1]
    state = load_checkpoint(info.path)
    assert state["step"] == info.step
    if place != "four/both":
        model = plain_model(5)
        model.load_state_dict(state["model"])
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(state["optimizers"][0])
        assert optimizer.state[model[0].weight]["exp_avg"].shape == (5, 6)  # type: ignore[index]
    assert len(state["ranks"]["rng"]) == (2 if place == "two/whole" else 4)
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_nothing_in_a_folder_is_run(made: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harmed",))

    folder = tmp_path / "step-00000003"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(InputError, match="nothing of it was run"):
        DistributedFolder(folder)
    assert not (tmp_path / "harmed").exists()


# -- a rank that is lost --------------------------------------------------------------------------


def test_a_kill_while_a_state_is_written_leaves_the_one_before(made: Path) -> None:
    run = load_run(made / "killed" / "killed")
    assert len(run.steps) == 4
    (info,) = run.checkpoints
    assert (info.step, info.healthy) == (2, True)
    assert load_checkpoint(info.path)["step"] == 2
    told = [f for f in run.diagnose().findings if f.rule == "lost-rank"]
    assert [(f.subject, f.severity) for f in told] == [("rank 1", Severity.ERROR)]


def test_a_rank_that_hangs_is_named(made: Path) -> None:
    run = load_run(made / "hung" / "hung")
    assert len(run.steps) == BAD
    waiting, stopped = run.rank_marks
    assert (waiting.step, stopped.step) == (BAD, BAD)
    assert waiting.place > stopped.place
    root = root_of(run)
    assert (root.rule, root.subject, root.severity) == ("lost-rank", "rank 1", Severity.ERROR)
    assert "rank 0 waited" in root.message
