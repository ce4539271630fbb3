"""What becomes one of what several ranks say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forensics.record.clipping import GradNorms
from forensics.record.local_part import counts_here, is_distributed, local_part
from forensics.record.loop_entries import post_clip_norm
from forensics.record.ranks.sharded_checkpoints import _joined as joined_health
from forensics.record.ranks.shards import _joined
from forensics.record.snapshots import PartOfTensor
from forensics.runlog.checkpoint_files import checkpoints_in


def test_what_is_no_dtensor_is_its_own_part() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert local_part(parameter) is parameter
    assert not is_distributed(parameter)
    assert counts_here(parameter)  # without other ranks


def part(l2: float, numel: int, *, counts: bool = True, bad: int = 0, **more: Any) -> PartOfTensor:
    given = {"absmax": None, "v_ratio": None, **more}
    return PartOfTensor(l2, bad, given["absmax"], given["v_ratio"], numel, counts)


def test_parts_become_one_tensor_and_replicas_count_once() -> None:
    parts = [
        part(3.0, 6, absmax=2.0, v_ratio=1.0),
        part(4.0, 2, absmax=5.0, v_ratio=3.0),
        part(3.0, 6, counts=False, absmax=2.0, v_ratio=1.0),
        part(0.0, 0),
    ]
    found = _joined(parts)
    assert found["value_l2"] == 5.0
    assert found["grad_absmax"] == 5.0
    assert found["v_ratio"] == pytest.approx(math.sqrt((6 * 1 + 2 * 9) / 8))


def test_a_nan_of_one_part_is_not_lost() -> None:
    found = _joined([part(math.nan, 4, bad=2, absmax=math.nan), part(1.0, 4, absmax=1.0)])
    assert math.isnan(found["value_l2"])
    assert math.isnan(found["grad_absmax"])
    assert found["value_nonfinite"] == 2
    only_replica = _joined([part(1.0, 4), part(math.nan, 4, counts=False, bad=1)])
    assert only_replica["value_nonfinite"] == 1


def health(folder: Path, rank: int, *bad: dict[str, Any], largest: float = 1.0) -> None:
    told = {
        "bad": list(bad),
        "missing": ["ema: none"],
        "extremes": {"param": {"name": f"of {rank}", "absmax": largest}},
    }
    (folder / f"rank-{rank:05d}.health.json").write_text(json.dumps(told))


def tensor(name: str, nan: int, *, counts: bool = True) -> dict[str, Any]:
    return {"name": name, "nan": nan, "inf": 0, "numel": 8, "kind": "param", "counts": counts}


def test_bad_tensors_of_all_ranks_are_added_up(tmp_path: Path) -> None:
    health(tmp_path, 0, tensor("model.w", 1), tensor("model.b", 2), largest=3.0)
    health(tmp_path, 1, tensor("model.w", 4), tensor("model.b", 2, counts=False), largest=9.0)
    health(tmp_path, 2, tensor("model.v", 5, counts=False))
    found = joined_health(tmp_path, 3)
    assert {entry["name"]: entry["nan"] for entry in found["bad"]} == {
        "model.w": 5,
        "model.b": 2,
        "model.v": 5,
    }
    assert all("counts" not in entry for entry in found["bad"])
    assert found["extremes"]["param"] == {"name": "of 1", "absmax": 9.0}
    assert found["missing"] == ["ema: none"]


def test_a_state_is_not_healthy_without_every_ranks_word(tmp_path: Path) -> None:
    health(tmp_path, 0)
    with pytest.raises(RuntimeError, match="1 of 2 ranks"):
        joined_health(tmp_path, 2)


def norms(total: float, *own: float) -> GradNorms:
    return GradNorms(("a", "b"), (), (1.0, 1.0), {}, total, own=own)


def test_the_norm_after_the_clip_is_told_from_this_ranks_parts() -> None:
    assert norms(10.0, 3.0, 4.0).whole_over_own == 2.0
    assert norms(0.0, 0.0, 0.0).whole_over_own == 1.0
    assert math.isnan(norms(10.0, 0.0, 0.0).whole_over_own)
    assert GradNorms((), (), (), {}, 3.0).whole_over_own == 1.0
    assert post_clip_norm([], math.nan) is None  # a rank that holds nothing can tell nothing


def test_a_folder_of_another_programs_is_no_checkpoint_of_ours(tmp_path: Path) -> None:
    """It is found and judged as any state that lies about; only ours is taken up as ours."""
    folder = tmp_path / "step-00000500"
    folder.mkdir()
    (folder / ".metadata").write_bytes(b"")
    assert checkpoints_in(tmp_path) == ()
    health(folder, 0)
    (info,) = checkpoints_in(tmp_path)
    assert (info.step, info.path, info.healthy) == (500, folder, None)
