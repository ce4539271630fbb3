"""One change to a replay does what it says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forensics.errors import NotReplayableError
from forensics.record.config import Config, OptimizerConfig, ScalerConfig
from forensics.record.options import RecordOptions
from forensics.record.recipe import Batch, Recipe, StepRecorder, Training
from forensics.record.reference_loop import record_run
from forensics.replay.rerun.changes import Changes, batch_size, select_samples
from forensics.replay.session import Session
from forensics.runlog.run import load_run
from tests.unit.replay.recordings import open_run, quiet, record

# -- changes ---------------------------------------------------------------------------------


def test_samples_are_left_out_or_kept_over_all_micro_batches(session: Session) -> None:
    batches = session.batch(2)
    assert [batch_size(b) for b in batches] == [6, 3]
    kept = select_samples(session.recipe, batches, 2, Changes(keep={2: [5, 7]}))
    assert [batch_size(b) for b in kept] == [1, 1]
    assert torch.equal(kept[0][0], batches[0][0][5:6])
    assert torch.equal(kept[1][0], batches[1][0][1:2])
    dropped = select_samples(session.recipe, batches, 2, Changes(drop={2: range(6)}))
    assert [batch_size(b) for b in dropped] == [3]
    untouched = select_samples(session.recipe, batches, 2, Changes(drop={3: [0]}))
    assert [batch_size(b) for b in untouched] == [6, 3]
    with pytest.raises(NotReplayableError, match="no sample"):
        select_samples(session.recipe, batches, 2, Changes(drop={2: range(9)}))


def _steps(session: Session, count: int, changes: Changes) -> list[Any]:
    logs = [session.run_step(changes=changes).log for _ in range(count)]
    assert all(log is not None for log in logs)
    return logs


def test_a_learning_rate_of_zero_times_itself_changes_nothing_but_the_weights(
    session: Session,
) -> None:
    before = [p.detach().clone() for p in session.model.parameters()]
    logs = _steps(session, 2, Changes(lr_factor=0.0))
    decayed = zip(before, session.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in decayed)
    recorded = [session.recorded(log.step) for log in logs]
    assert [log.lrs[0] for log in logs] == [row["lr"] for row in recorded if row]


def test_a_clip_threshold_of_its_own(session: Session) -> None:
    logs = _steps(session, 3, Changes(max_norm=1e-3))
    assert all(log.grad_l2_post_clip <= 1.001e-3 for log in logs)


def test_in_float64_a_row_is_near_the_recorded_one_but_not_it(session: Session) -> None:
    before = session.capture()
    log = _steps(session, 1, Changes(precision="fp64"))[0]
    recorded = session.recorded(0)
    assert recorded is not None
    assert session.training.model[0].weight.dtype == torch.float64  # type: ignore[index]
    assert log.loss == pytest.approx(recorded["loss"], rel=1e-5)
    assert log.loss != recorded["loss"]
    session.restore(before)
    assert session.departure(session.run_step()) is None


def test_what_overflows_in_fp16_is_finite_in_bf16_and_fp32(tmp_path: Path) -> None:
    run = record("fp16-overflow", tmp_path / "run", steps=60)
    rows = load_run(run).steps
    skipped = int(rows.step[rows["skipped"]][-1])
    with open_run(run) as session:
        session.go_to(skipped)
        while session.step_index < skipped:
            session.run_step()
        before = session.capture()
        assert "loss" in session.run_step().bad
        for precision in ("bf16", "fp32", "fp64"):
            session.restore(before)
            assert session.run_step(changes=Changes(precision=precision)).bad == ()
        session.restore(before)
        assert "loss" in session.run_step(changes=Changes(loss_scale=1.0)).bad


class OwnLoop(Recipe):
    """Autocast in a loop of its own."""

    defaults = Config(
        steps=4,
        precision="fp16",
        max_norm=None,
        optimizer=OptimizerConfig(name="sgd", lr=1.0),
        scaler=ScalerConfig(init_scale=8.0),
    )

    def build(self, config: Config) -> Training:
        model = nn.Linear(4, 2)
        return Training(model, [torch.optim.SGD(model.parameters(), config.optimizer.lr)], _no_loss)

    def batch(self, step: int) -> list[Batch]:
        return [torch.full((3, 4), 1e3 * (step + 1))]

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = training.model(batches[0])
            loss: Tensor = (out * out).mean()
        self.dtype = out.dtype
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        scaler.step(optimizer)
        scaler.update()
        return loss


def _no_loss(model: nn.Module, batch: Batch) -> Tensor:
    raise AssertionError("the loop is the recipe's own")


@pytest.fixture
def own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session on a loop of its own, found under a registered name."""
    OwnLoop.name = "own-loop"
    record_run(OwnLoop(), OwnLoop.defaults, RecordOptions(out=tmp_path / "run"), say=quiet)
    monkeypatch.setattr("forensics.replay.rerun.rebuild.find_recipe", lambda _: OwnLoop)
    with open_run(tmp_path / "run") as opened:
        yield opened


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        (None, torch.float16),
        ("bf16", torch.bfloat16),
        ("fp32", torch.float32),
        ("fp64", torch.float64),
    ],
)
def test_a_loop_of_its_own_computes_in_another_precision(
    own_loop: Session, precision: str | None, dtype: torch.dtype
) -> None:
    own_loop.run_step(changes=Changes(precision=precision))
    assert own_loop.recipe.dtype is dtype  # type: ignore[attr-defined]
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.get_autocast_dtype("cpu") is torch.float16


def test_a_loop_of_its_own_is_clipped_at_optimizer_entry(own_loop: Session) -> None:
    before = [p.detach().clone() for p in own_loop.model.parameters()]
    own_loop.run_step(changes=Changes(max_norm=1e-4, precision="fp32"))
    moved = [b - a.detach() for a, b in zip(own_loop.model.parameters(), before, strict=True)]
    assert float(nn.utils.get_total_norm(moved)) == pytest.approx(1e-4, rel=1e-2)
