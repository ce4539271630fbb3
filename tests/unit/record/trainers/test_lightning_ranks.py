"""``ForensicsCallback`` where Lightning trains with several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release


class SecondProcess:
    """What the callback sees of a Trainer on rank 1, whose ``log_dir`` is a broadcast."""

    is_global_zero = False
    optimizers = (object(),)
    default_root_dir = "."

    def __init__(self) -> None:
        self.broadcasts = 0

    @property
    def log_dir(self) -> str:
        self.broadcasts += 1
        return "logs"


@pytest.mark.parametrize(("given", "broadcasts"), [(None, 1), ("run", 0)])
def test_every_rank_takes_part_in_lightnings_broadcast_of_its_folder(
    given: Any, broadcasts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forensics.record.trainers.lightning import ForensicsCallback

    monkeypatch.chdir(tmp_path)
    trainer, callback = SecondProcess(), ForensicsCallback(given)
    callback.on_train_start(trainer, nn.Linear(2, 2))
    assert trainer.broadcasts == broadcasts  # rank 0 waits for it in the one case alone
    assert callback.recorder is None
    assert list(tmp_path.iterdir()) == []
