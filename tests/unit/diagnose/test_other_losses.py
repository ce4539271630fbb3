"""What is said of losses beside the one that is judged, and of a loss that is 0 for good."""

from __future__ import annotations

import json
from pathlib import Path

from forensics.diagnose.engine import diagnose
from forensics.runlog.run import load_run


def open_of(tmp_path: Path, columns: dict[str, list[float]]) -> str:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    lines = [json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(lines))
    return " ".join(diagnose(load_run(path)).verdict.undecided)


NAN = float("nan")
LOSS = [3 - n / 40 + 0.02 * (n * 7 % 5) for n in range(60)]


def test_a_critic_that_is_lost_is_named_with_its_first_step(tmp_path: Path) -> None:
    critic = [0.5] * 20 + [NAN] * 40
    said = open_of(tmp_path, {"loss": LOSS, "critic/vf_loss": critic})
    assert "critic/vf_loss is NaN from step 20 on" in said


def test_one_that_comes_back_or_is_measured_elsewhere_is_not(tmp_path: Path) -> None:
    back = [0.5] * 20 + [NAN] * 38 + [0.5, 0.5]
    said = open_of(tmp_path, {"loss": LOSS, "aux_loss": back, "eval/aux_loss": [NAN] * 60})
    assert "NaN" not in said


def test_a_loss_of_0_for_good_is_asked_about(tmp_path: Path) -> None:
    said = open_of(tmp_path, {"loss": [12.18, 1.8e-6] + [0.0] * 58})
    assert "exactly 0 from step 2 to the end" in said


def test_a_loss_that_touches_0_or_comes_there_late_is_not(tmp_path: Path) -> None:
    late = [3 - n / 16 for n in range(41)] + [0.0] * 19
    assert "exactly 0" not in open_of(tmp_path, {"loss": late})
    assert "exactly 0" not in open_of(tmp_path, {"loss": [0.0] * 50 + LOSS[:10]})
