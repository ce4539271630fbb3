"""States that a loop or trainer saves by itself: found in run.json, judged, and replayed from."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.utils import clip_grad_norm_

from forensics.diagnose.bisection_result import BisectStatus
from forensics.errors import InputError
from forensics.record.recipe import Training
from forensics.record.recorder import Recorder
from forensics.replay.bisect import bisect_run
from forensics.replay.saved_states.adopted_state import adopted_state
from forensics.replay.saved_states.noted_states import noted_in, with_noted_states
from forensics.runlog.run import load_run

SCRIPT = Path(__file__).parents[3] / "examples" / "own_loop.py"


def tutorial(path: Path, model, optimizer, schedule) -> Path:
    parts = {"model_state_dict": model, "optimizer_state_dict": optimizer, "scheduler": schedule}
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": 3}, path)
    return path


def lightning(path: Path, model, optimizer, schedule) -> Path:
    path = path.with_suffix(".ckpt")
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    whole = {
        "state_dict": weights,
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [schedule.state_dict()],
        "loops": {"fit_loop": {"state_dict": {}}},
        "global_step": 1,
    }
    torch.save(whole, path)
    return path


def huggingface(path: Path, model, optimizer, schedule) -> Path:
    path = path.with_suffix("")
    path.mkdir()
    torch.save(model.state_dict(), path / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), path / "optimizer.pt")
    torch.save(schedule.state_dict(), path / "scheduler.pt")
    (path / "trainer_state.json").write_text("{}")
    return path


def distributed(path: Path, model, optimizer, schedule) -> Path:
    path = path.with_suffix("")
    weights, moments = get_state_dict(model, optimizer)
    whole = {"model": weights, "optimizer": moments, "lr_scheduler": schedule.state_dict()}
    dcp.save(whole, checkpoint_id=path, no_dist=True)
    return path


def record(folder: Path, save) -> Path:
    script = runpy.run_path(str(SCRIPT))
    torch.manual_seed(0)
    model, optimizer, schedule = script["build"]()
    with Recorder(folder / "run", model, optimizer, max_norm=1.0, snapshot_every=0) as recorder:
        for step in range(46):
            if step in (20, 40, 44):
                state = save(folder / f"{save.__name__}-{step}.pt", model, optimizer, schedule)
                recorder.saved(state, step)
            optimizer.zero_grad()
            loss = script["loss_of"](model, script["batch"](step))
            loss.backward()
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            recorder.end_step()
    return folder / "run"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    "save", [tutorial, lightning, huggingface, distributed], ids=lambda f: f.__name__
)
def test_a_replay_goes_on_from_what_another_has_saved(save, tmp_path):
    run = record(tmp_path, save)
    result = bisect_run(run, recipe=f"{SCRIPT}:loudness", what_if=False)
    assert result.status is BisectStatus.LOCATED
    assert result.replayed_from == 40
    assert (result.departure, result.faithful_until) == (None, 41)
    assert result.origin.operator == "aten.log"
    assert result.samples == (5,)
    (note,) = [note for note in result.notes if "not this program's own" in note]
    assert "what they lack (random generators) is in the replay as the recipe builds it" in note
    assert {c.step: c.verdict for c in result.checkpoints}[40] == "good"


def test_without_a_recipe_their_health_is_told(tmp_path):
    run = record(tmp_path, tutorial)
    result = bisect_run(run)
    assert result.first_bad_step == 41
    verdicts = {c.step: c.verdict for c in result.checkpoints}
    assert verdicts[40] == "good"
    assert verdicts[44] == "bad"


class TestWhatIsNoted:
    def test_only_where_the_run_has_no_checkpoints_and_they_are_there(self, tmp_path):
        run = record(tmp_path, tutorial)
        assert [step for step, _ in noted_in(run)] == [20, 40, 44]
        (tmp_path / "tutorial-20.pt").unlink()
        found = with_noted_states(load_run(run)).checkpoints
        assert [info.step for info in found] == [40, 44]
        assert noted_in(tmp_path) == []

    def test_a_run_with_states_of_its_own_is_left_alone(self, tmp_path):
        folder = tmp_path / "run"
        runpy.run_path(str(SCRIPT))["train"](folder)
        run = load_run(folder)
        assert with_noted_states(run) is run


class TestAdopting:
    def training(self) -> Training:
        script = runpy.run_path(str(SCRIPT))
        model, optimizer, schedule = script["build"]()
        return Training(model, optimizer, script["loss_of"], schedulers=schedule)

    def test_what_is_not_there_stays_as_built_and_is_told(self, tmp_path):
        training = self.training()
        path = tmp_path / "weights.pt"
        torch.save({f"module.{n}": v + 1 for n, v in training.model.state_dict().items()}, path)
        state, missing = adopted_state(path, training, 7)
        assert missing == ["random generators", "the optimizer's state", "the schedule"]
        assert state["step"] == 7
        own = training.model.state_dict()
        assert all(torch.equal(state["model"][name], own[name] + 1) for name in own)

    def test_weights_of_another_model_are_refused(self, tmp_path):
        torch.save({"model": {"0.weight": torch.ones(2)}}, tmp_path / "other.pt")
        with pytest.raises(InputError, match=r"has no 1\.weight"):
            adopted_state(tmp_path / "other.pt", self.training(), 0)
        torch.save({"note": "nothing"}, tmp_path / "empty.pt")
        with pytest.raises(InputError, match="no weights"):
            adopted_state(tmp_path / "empty.pt", self.training(), 0)

    def test_nothing_in_a_state_runs(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (exec, ("raise SystemExit('ran')",))

        torch.save({"model": Trap()}, tmp_path / "trap.pt")
        with pytest.raises(InputError, match="nothing of it was run"):
            adopted_state(tmp_path / "trap.pt", self.training(), 0)

    def test_a_tied_weight_saved_once_is_loaded_into_both(self, tmp_path):
        embed, head = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
        head.weight = embed.weight
        model = torch.nn.ModuleDict({"embed": embed, "head": head})
        training = Training(model, torch.optim.SGD(model.parameters(), 0.1), lambda *_: None)
        torch.save({"embed.weight": torch.full((4, 3), 2.0)}, tmp_path / "tied.pt")
        state, _ = adopted_state(tmp_path / "tied.pt", training, 0)
        assert torch.equal(state["model"]["head.weight"], torch.full((4, 3), 2.0))
