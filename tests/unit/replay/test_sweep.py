"""The whole run once more: from where it began, which a loop of one's own may have seeded."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from forensics.diagnose.bisection_result import BisectStatus
from forensics.record.recorder import Recorder
from forensics.replay.bisect import bisect_run

SCRIPT = Path(__file__).parents[3] / "examples" / "own_loop.py"


def test_a_healthy_run_is_replayed_from_its_first_saved_state(tmp_path: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    torch.manual_seed(5)  # the recipe's is another
    model, optimizer, schedule = script["build"]()
    options = {"schedulers": schedule, "checkpoint_every": 50, "max_norm": 1.0}
    with Recorder(tmp_path / "run", model, optimizer, **options) as recorder:
        for step in range(8):
            optimizer.zero_grad()
            loss = script["loss_of"](model, script["batch"](step))
            loss.backward()
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            recorder.end_step()
    result = bisect_run(tmp_path / "run", recipe=f"{SCRIPT}:loudness", what_if=False)
    assert result.status is BisectStatus.HEALTHY
    assert (result.replayed_from, result.departure) == (0, None)
    assert result.compared == 8
