"""The story of the parameters, from snapshots written to disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.param_story import param_story
from forensics.errors import InputError, UsageError
from forensics.runlog.manifest import Manifest
from forensics.runlog.params import ParamStore, ParamWriter
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

NAMES = ("embed.weight", *(f"blocks.{i}.fc.{p}" for i in range(3) for p in ("weight", "bias")))
GROWN = NAMES.index("blocks.1.fc.weight")
SNAPSHOTS = 40


def norms() -> np.ndarray:
    """Calm gradients, of which one starts to grow at snapshot 30."""
    values = np.exp(0.2 * np.random.default_rng(0).normal(size=(SNAPSHOTS, len(NAMES))))
    values[30:, GROWN] *= np.geomspace(2.1, 100, 10)
    return values


def write(
    directory: Path,
    grads: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    buffer_bad_at: int | None = None,
    every: int = 10,
    log: dict[str, np.ndarray] | None = None,
) -> Run:
    with ParamWriter(directory) as writer:
        for i, row in enumerate(grads):
            bad = np.zeros(len(row), np.int64) if counts is None else counts[i]
            stats = {"grad_l2": row, "grad_nonfinite": bad, "value_l2": np.full(len(row), 2.0)}
            writer.append(i * every, NAMES[: len(row)], "param", {**stats, "update_l2": row * 0.02})
            if buffer_bad_at is not None:
                state = {"value_nonfinite": np.array([int(i >= buffer_bad_at)])}
                writer.append(i * every, ["bn.running_var"], "buffer", state)
    steps = StepTable.from_arrays(log or {"step": np.arange(len(grads) * every)})
    manifest = Manifest(arrival_order=tuple(reversed(NAMES)))
    return Run(Path("runs/x"), steps, manifest, params=ParamStore(directory))


def test_the_largest_come_first_with_share_growth_and_ratio(tmp_path: Path) -> None:
    grads = norms()
    story = param_story(write(tmp_path / "params", grads))
    assert story.step == 390
    assert len(story.top) == 5
    top = story.top[0]
    assert top.name == "blocks.1.fc.weight"
    assert top.grad_l2 == pytest.approx(grads[-1, GROWN], rel=1e-6)
    assert top.share == pytest.approx(grads[-1, GROWN] ** 2 / (grads[-1] ** 2).sum(), rel=1e-5)
    assert top.growth == pytest.approx(grads[-1, GROWN] / np.median(grads[:32, GROWN]), rel=1e-5)
    assert top.update_ratio == pytest.approx(top.grad_l2 * 0.01, rel=1e-6)
    assert story.grad_l2 == pytest.approx(np.linalg.norm(grads[-1]), rel=1e-6)
    assert [row.grad_l2 for row in story.top] == sorted(
        (r.grad_l2 for r in story.top), reverse=True
    )


def test_who_moved_first_is_the_first_mover(tmp_path: Path) -> None:
    grads = norms()
    grads[36:, 0] *= 50
    story = param_story(write(tmp_path / "params", grads))
    assert [mover.name for mover in story.movers] == ["blocks.1.fc.weight", "embed.weight"]
    assert 300 <= story.movers[0].since <= 310
    assert story.movers[1].since == 360


def test_the_first_bad_one_and_its_brackets_by_arrival(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[35:, 1:3] = np.nan
    counts[35:, 1:3] = 3
    story = param_story(write(tmp_path / "params", grads, counts))
    assert story.step == 340  # the last sound one before
    assert story.first_bad is not None
    assert (story.first_bad.step, story.first_bad.name) == (350, "blocks.0.fc.bias")
    assert story.first_bad.finite_before == "blocks.1.fc.weight"
    assert story.first_bad.finite_after == "embed.weight"
    assert (story.first_bad.bad, story.first_bad.elements) == (2, 3)


def test_a_bad_snapshot_shows_its_bad_parameters_first(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[35:, 4] = np.inf
    counts[35:, 4] = 1
    story = param_story(write(tmp_path / "params", grads, counts), step=360)
    assert story.top[0].name == NAMES[4]
    assert story.top[0].nonfinite == 1
    assert len(story.top) == 5


def test_an_overflow_that_the_scaler_skips_is_routine(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[20], counts[20] = np.inf, 1
    rows = SNAPSHOTS * 10
    norm, skipped = np.ones(rows), np.zeros(rows)
    norm[200], skipped[200] = np.inf, 1
    log = {
        "step": np.arange(rows),
        "loss": np.ones(rows),
        "grad_l2_pre_clip": norm,
        "skipped": skipped,
        "scaler_scale": np.where(np.arange(rows) <= 200, 1024.0, 512.0),
    }
    story = param_story(write(tmp_path / "params", grads, counts, log=log))
    assert story.first_bad is None
    assert story.routine == 1


def test_the_first_bad_state_beside_the_parameters(tmp_path: Path) -> None:
    story = param_story(write(tmp_path / "params", norms(), buffer_bad_at=12))
    assert story.bad_state is not None
    assert (story.bad_state.step, story.bad_state.kind) == (120, "buffer")
    assert story.bad_state.name == "bn.running_var"


def test_the_profile_is_by_layer_in_network_order(tmp_path: Path) -> None:
    grads = norms()
    story = param_story(write(tmp_path / "params", grads))
    assert [row.name for row in story.profile] == ["embed", "blocks.0", "blocks.1", "blocks.2"]
    assert [row.parameters for row in story.profile] == [1, 2, 2, 2]
    assert story.profile[1].grad_l2 == pytest.approx(np.linalg.norm(grads[-1, 1:3]), rel=1e-6)
    assert sum(row.share for row in story.profile) == pytest.approx(1, abs=1e-6)


def test_a_step_between_snapshots_means_the_one_before(tmp_path: Path) -> None:
    run = write(tmp_path / "params", norms())
    assert param_story(run, step=119).step == 110
    assert param_story(run, step=10**9).step == 390
    with pytest.raises(UsageError, match="no snapshot at or before"):
        param_story(run, step=-1)


def test_a_glob_chooses_and_few_are_told_over_time(tmp_path: Path) -> None:
    run = write(tmp_path / "params", norms())
    story = param_story(run, pattern="blocks.1.*")
    assert story.parameters == 2
    assert {row.name for row in story.top} == {"blocks.1.fc.weight", "blocks.1.fc.bias"}
    assert story.top[0].share < 1  # of the whole norm, not of the chosen ones
    assert [series.name for series in story.series] == ["blocks.1.fc.weight", "blocks.1.fc.bias"]
    assert len(story.series[0].steps) <= 12
    assert story.step in story.series[0].steps
    assert not param_story(run).series
    with pytest.raises(UsageError, match=r"near it: blocks\.1\.fc\.weight"):
        param_story(run, pattern="*1.fc.w")


def test_a_run_without_snapshots_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no per-parameter snapshots"):
        param_story(Run(tmp_path, StepTable.from_arrays({"step": np.arange(3)})))
    with pytest.raises(InputError, match="no per-parameter snapshots"):
        param_story(write(tmp_path / "params", np.zeros((0, 3))))


CELL = st.sampled_from([0.0, 1.0, 1e-30, 3e38, np.nan, np.inf, -np.inf, -1.0])


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_any_snapshots_are_told(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    snapshots, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, len(NAMES)))
    cells = data.draw(st.lists(CELL, min_size=snapshots * width, max_size=snapshots * width))
    grads = np.array(cells).reshape(snapshots, width)
    counts = (~np.isfinite(grads)).astype(np.int64)
    run = write(tmp_path_factory.mktemp("params"), grads, counts)
    story = param_story(run, step=data.draw(st.none() | st.integers(0, 300)))
    assert story.first_step <= story.step <= story.last_step
    assert sum(row.parameters for row in story.profile) == width


def test_a_snapshot_without_gradients_gives_way_to_the_one_before(tmp_path: Path) -> None:
    grads = norms()
    grads[36:] = np.nan
    rows = SNAPSHOTS * 10
    loss = np.ones(rows)
    loss[360:] = np.nan
    run = write(tmp_path / "params", grads, log={"step": np.arange(rows), "loss": loss})
    story = param_story(run, step=375)
    assert (story.step, story.asked) == (350, 375)
    assert story.no_gradient.startswith("no gradient was taken at step 370: the loss is NaN")
    assert len(story.top) == 5
    assert param_story(run, step=350).no_gradient == ""
    bare = write(tmp_path / "bare", np.full((3, len(NAMES)), np.nan))
    story = param_story(bare, step=20)
    assert (story.step, story.no_gradient) == (20, "no gradient was taken at step 20")


def test_shares_are_of_what_is_finite_in_both_tables(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[35, 1], counts[35, 1] = np.inf, 1
    story = param_story(write(tmp_path / "params", grads, counts), step=350)
    finite = np.delete(grads[35], 1)
    embed = next(row for row in story.profile if row.name == "embed")
    assert embed.share == pytest.approx(grads[35, 0] ** 2 / (finite**2).sum(), rel=1e-5)
    top = {row.name: row.share for row in story.top}
    if "embed.weight" in top:
        assert top["embed.weight"] == pytest.approx(embed.share, rel=1e-5)
    blocks = [row for row in story.profile if not row.nonfinite]
    assert 0.2 < sum(row.share for row in blocks) <= 1.0 + 1e-6


def test_where_all_gradients_are_bad_the_loss_tells_where_it_was_born(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[35:], counts[35:] = np.nan, 3
    rows = SNAPSHOTS * 10
    log = {"step": np.arange(rows), "loss": np.ones(rows)}
    story = param_story(write(tmp_path / "finite", grads, counts, log=log))
    assert story.first_bad is not None
    assert "born in backward of the loss" in story.first_bad.origin
    log["loss"][350:] = np.nan
    story = param_story(write(tmp_path / "bad", grads, counts, log=log))
    assert story.first_bad is not None
    assert "it came with the loss, from the batch or the forward pass" in story.first_bad.origin


def test_one_bad_gradient_among_finite_ones_was_born_in_its_own(tmp_path: Path) -> None:
    grads, counts = norms(), np.zeros((SNAPSHOTS, len(NAMES)), np.int64)
    grads[35:, 3], counts[35:, 3] = np.nan, 1
    story = param_story(write(tmp_path / "params", grads, counts))
    assert story.first_bad is not None
    assert f"where that of {NAMES[3]} itself is computed" in story.first_bad.origin
