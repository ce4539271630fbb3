import json
import math
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from forensics.errors import InputError
from forensics.record.checkpoints import CheckpointStore, list_checkpoints, load_checkpoint
from forensics.record.disk_guard import DiskGuard
from forensics.record.health import HealthScan
from forensics.record.options import KeepPolicy


class Store:
    """A store over a single layer, with what it announces and says."""

    def __init__(self, folder, keep="last:3,every:0") -> None:
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.said: list[str] = []
        self.announced: dict[str, int | None] = {}
        self.folder = folder
        self.store = CheckpointStore(
            folder,
            HealthScan(self.model, [self.optimizer]),
            DiskGuard(self.said.append),
            KeepPolicy.parse(keep),
            self.announced.update,
        )

    def save(self, *steps: int, value: float = 1.0) -> None:
        nn.init.constant_(self.model.weight, value)
        for step in steps:
            self.store.save(step, {"model": self.model.state_dict(), "step": step})

    def pass_steps(self, *steps: int, skipped: bool = False, loss: float = 1.0) -> None:
        for step in steps:
            self.store.observe(step, loss, skipped=skipped, bad=skipped)

    @property
    def names(self) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir() if p.suffix == ".pt")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "checkpoints")


def test_a_state_comes_back_by_a_safe_load(store):
    store.save(40, value=2.5)
    state = load_checkpoint(store.folder / "step-00000040.pt")
    assert state["model"]["weight"].item() == 2.5
    assert os.listdir(store.folder).count("step-00000040.health.json") == 1


class TestHealth:
    def test_is_read_without_torch(self, store):
        store.pass_steps(0, 1, loss=0.5)
        store.save(2)
        (info,) = list_checkpoints(store.folder)
        assert info.healthy is True
        assert info.health["mean_loss"] == 0.5
        assert (info.health["bad"], info.health["missing"]) == ([], [])
        assert info.health["extremes"]["param"]["name"].startswith("model.")

    def test_a_non_finite_state_is_kept_aside(self, store):
        store.save(10)
        store.save(20, value=math.nan)
        assert store.names == ["step-00000010.pt", "step-00000020.nonfinite.pt"]
        info = list_checkpoints(store.folder)[1]
        assert info.healthy is False
        (found,) = info.health["bad"]
        assert (found["name"], found["kind"], found["nan"]) == ("model.weight", "param", 1)
        assert store.announced == {"best": None, "last_healthy": 10}

    def test_a_non_finite_state_does_not_replace_a_healthy_one_of_the_same_step(self, store):
        store.save(10, value=3.0)
        store.save(10, value=math.inf)
        assert load_checkpoint(store.folder / "step-00000010.pt")["model"]["weight"].item() == 3.0
        assert [info.healthy for info in list_checkpoints(store.folder)] == [False, True]

    def test_a_state_saved_while_every_step_is_skipped_is_not_healthy(self, store):
        store.save(0)
        store.pass_steps(*range(20), skipped=True)
        store.save(20)
        assert store.names == ["step-00000000.pt", "step-00000020.pt"]
        info = list_checkpoints(store.folder)[1]
        assert info.healthy is False
        assert info.health["finite"] is True
        assert "all skipped" in info.health["reason"]
        assert store.announced["last_healthy"] == 0

    def test_one_skipped_step_before_a_save_is_the_scaler_at_work(self, store):
        store.pass_steps(0, 1, 2)
        store.pass_steps(3, skipped=True)
        store.save(4)
        assert list_checkpoints(store.folder)[0].healthy is True


class TestRotation:
    def test_keeps_the_last(self, store):
        store.save(0, 10, 20, 30, 40)
        assert store.names == [f"step-{step:08d}.pt" for step in (20, 30, 40)]
        assert len(list(store.folder.iterdir())) == 6  # the health files went, too

    def test_keeps_every_kth_for_good(self, tmp_path):
        store = Store(tmp_path / "c", "last:1,every:20")
        store.save(0, 10, 20, 30, 40, 50)
        assert store.names == [f"step-{step:08d}.pt" for step in (0, 20, 40, 50)]

    def test_bad_ones_never_push_healthy_ones_out(self, store):
        store.save(10, 20)
        store.save(30, 40, 50, 60, 70, value=math.nan)
        healthy = ["step-00000010.pt", "step-00000020.pt"]
        assert store.names == healthy + [f"step-{s:08d}.nonfinite.pt" for s in (50, 60, 70)]

    def test_stale_ones_never_push_healthy_ones_out(self, store):
        store.save(0)
        for step in range(0, 50, 10):
            store.pass_steps(*range(step, step + 10), skipped=True)
            store.save(step + 10)
        assert "step-00000000.pt" in store.names

    def test_the_best_stays(self, store):
        for step, loss in zip(range(10, 70, 10), [3.0, 1.0, 2.0, 2.0, 2.0, 2.0], strict=True):
            store.pass_steps(*range(step - 10, step), loss=loss)
            store.save(step)
        assert store.names == [f"step-{step:08d}.pt" for step in (20, 40, 50, 60)]
        assert store.announced == {"best": 20, "last_healthy": 60}


class TestPin:
    @staticmethod
    def quietly(store: Store, *steps: int, skipped: bool = False) -> None:
        """Steps without a finite loss, so that no checkpoint is kept for being the best."""
        store.pass_steps(*steps, skipped=skipped, loss=math.nan)

    def test_the_checkpoint_before_trouble_outlives_rotation_until_a_thousand_clean_steps(
        self, tmp_path
    ):
        store = Store(tmp_path / "c", "last:1")
        store.save(0, 10)
        self.quietly(store, 10, 11)
        self.quietly(store, 12, skipped=True)
        store.save(20, 30)
        self.quietly(store, *range(30, 1029))
        store.save(1030)
        assert store.names == ["step-00000010.pt", "step-00001030.pt"]
        self.quietly(store, 1029)
        store.save(1040)
        assert store.names == ["step-00001040.pt"]

    def test_trouble_that_flares_up_pins_its_first_step_and_its_latest(self, tmp_path):
        store = Store(tmp_path / "c", "last:1")
        store.save(10)
        for step in (12, 22, 32):
            self.quietly(store, step - 1)
            self.quietly(store, step, step + 1, skipped=True)
            store.save(step + 8)
        store.save(50)
        assert store.names == [f"step-{step:08d}.pt" for step in (10, 30, 50)]

    def test_survives_a_resume(self, tmp_path):
        first = Store(tmp_path / "c", "last:1")
        first.save(10)
        self.quietly(first, 12, skipped=True)
        first.save(20)
        second = Store(tmp_path / "c", "last:1")
        second.store.load_state_dict(first.store.state_dict())
        second.save(30, 40)
        assert second.names == ["step-00000010.pt", "step-00000040.pt"]


class TestDisk:
    def test_a_failing_save_is_said_and_the_old_ones_stay(self, store, monkeypatch):
        store.save(10)

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        store.save(20, 30)
        assert store.names == ["step-00000010.pt"]
        assert sorted(p.name for p in store.folder.iterdir())[0] == "step-00000010.health.json"
        assert len(store.said) == 1
        assert "No space left" in store.said[0]
        assert store.announced["last_healthy"] == 10

    @pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
    def test_a_damaged_file_is_one_clear_error(self, tmp_path, content):
        path = tmp_path / "step-00000001.pt"
        path.write_bytes(content)
        with pytest.raises(InputError, match="no readable checkpoint"):
            load_checkpoint(path)

    def test_a_file_that_wants_to_run_code_is_refused(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return (os.system, ("true",))

        path = tmp_path / "step-00000001.pt"
        torch.save({"x": Evil()}, path)
        with pytest.raises(InputError):
            load_checkpoint(path)


def test_health_json_is_strict_json(store):
    store.save(5, value=math.inf)
    text = next(store.folder.glob("*.health.json")).read_text()
    assert "Infinity" not in text
    assert json.loads(text)["healthy"] is False


def test_torch_s_advice_to_load_unsafely_is_not_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "step-00000001.pt"
    torch.save({"a": Path("x")}, path)
    with pytest.raises(InputError, match="nothing of it was run") as caught:
        load_checkpoint(path)
    assert "weights_only" not in caught.value.line()
