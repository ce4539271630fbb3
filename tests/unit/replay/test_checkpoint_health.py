"""Is a saved state finite: what is bad, what may be meant, and whom to believe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forensics.record.health import HealthScan
from forensics.replay.bisection import State
from forensics.replay.checkpoint_health import believed, examine_state, judge_state
from forensics.runlog.checkpoint_files import health_path
from tests.unit.replay.recordings import record
from tests.unit.replay.saved_states.states import trained, training_state

NAN, INF = float("nan"), float("inf")


def save(state: Any, path: Path) -> Path:
    torch.save(state, path)
    return path


def with_value(place: str, value: Any) -> dict[str, Any]:
    """A training state with one value set."""
    state: Any = training_state()
    *outer, last = place.split("/")
    inner = state
    for key in outer:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner[int(key)]
    inner[last] = value
    return state  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "place",
    [
        "model/extra.weight",
        "optimizer/state/9",
        "ema/layer.weight",
        "optimizer/param_groups/0/lr",
        "scaler/scale",
    ],
)
def test_where_an_infinity_is_bad(place: str, tmp_path: Path) -> None:
    value: Any = INF if place.endswith(("lr", "scale")) else torch.tensor([1.0, INF])
    health = examine_state(save(with_value(place, value), tmp_path / "a.pt"))
    assert [bad.name for bad in health.bad] == [place.replace("/", ".")]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("lr_scheduler/mode_worse", INF),
        ("best", INF),
        ("model/attn.causal_mask", torch.full((3, 3), -INF).triu(1)),
        ("model/attn.bias_table", torch.full((3, 3), -INF).triu(1)),  # a mask by its contents
        ("callbacks/stopper/best_score", torch.tensor(INF)),
    ],
)
def test_where_an_infinity_may_be_meant(place: str, value: Any, tmp_path: Path) -> None:
    path = save(with_value(place, value), tmp_path / "a.pt")
    name = place.replace("/", ".")
    health = examine_state(path)
    assert health.finite
    assert [value.name for value in health.infinite] == [name]
    if not isinstance(value, torch.Tensor) or not value.dim():
        held = examine_state(path, finite_before={name})  # an earlier state had it finite
        assert [bad.name for bad in held.bad] == [name]


def test_nan_is_bad_anywhere_but_in_generators_and_settings(tmp_path: Path) -> None:
    path = save(with_value("lr_scheduler/best", NAN), tmp_path / "a.pt")
    assert [bad.name for bad in examine_state(path).bad] == ["lr_scheduler.best"]
    for place in ("rng/gauss", "hparams/missing_value", "config/x"):
        assert examine_state(save(with_value(place, NAN), tmp_path / "b.pt")).finite


def test_a_bad_value_says_where_it_begins(tmp_path: Path) -> None:
    (bad, moment) = examine_state(save(training_state(bad=True), tmp_path / "a.pt")).bad
    assert (bad.shape, bad.dtype, bad.first, bad.numel) == ((2, 4), "float32", (1, 2), 8)
    assert moment.first == (3,)


def test_facts(tmp_path: Path) -> None:
    state = training_state()
    state["rng"] = {"torch": torch.get_rng_state()}
    state["lr_scheduler"] = {"base_lrs": [0.5]}
    state["model"]["half"] = torch.full((10,), 3.0, dtype=torch.bfloat16)
    health = examine_state(save(state, tmp_path / "a.pt"))
    assert health.extremes["param"] == {"name": "model.half", "absmax": 3.0}
    assert health.numbers == {"optimizer.param_groups.0.lr": 1e-3, "scaler.scale": 65536.0}
    assert health.dtypes["bfloat16"] == 10
    assert "uint8" not in health.dtypes  # the state of a generator is none of the training's
    assert health.elements == sum(health.dtypes.values())


def test_a_negative_second_moment_is_a_risk_and_not_bad(tmp_path: Path) -> None:
    state = training_state()
    state["optimizer"]["state"][2]["exp_avg_sq"][1] = -1e-9
    health = examine_state(save(state, tmp_path / "a.pt"))
    assert health.finite
    assert "optimizer.state.2.exp_avg_sq is negative in places" in health.risks[0]


def test_tensors_without_data_are_said(tmp_path: Path) -> None:
    state = {"model": {"a": torch.ones(2), "b": torch.empty(3, device="meta")}}
    (note,) = examine_state(save(state, tmp_path / "a.pt")).notes
    assert note == "1 tensor is on the meta device: nothing is stored of it."


# -- this program's own states ---------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record("healthy-gpt", tmp_path_factory.mktemp("health") / "run")


def test_our_own_states_agree_with_their_health_files(run: Path) -> None:
    for path in sorted((run / "checkpoints").glob("*.pt")):
        told = json.loads(health_path(path).read_text())
        health = examine_state(path)
        assert health.format == "forensics"
        assert health.step == told["step"]
        assert health.missing == ()
        for kind in told["extremes"].keys() & {"param", "optimizer", "ema", "buffer"}:
            assert health.extremes[kind] == told["extremes"][kind]


def test_both_scans_call_the_same_bad_by_the_same_names(tmp_path: Path) -> None:
    model, optimizer = trained(bad=True)
    state = {"model": model.state_dict(), "optimizers": [optimizer.state_dict()]}
    wanted, _ = HealthScan(model, [optimizer]).scan(state)
    found = examine_state(save(state, tmp_path / "a.pt")).bad
    assert [(b.name, b.kind, b.parameter, b.nan, b.inf) for b in found] == [
        (b.name, b.kind, b.parameter, b.nan, b.inf) for b in wanted
    ]


def test_a_manifest_tells_parameters_from_buffers(run: Path, tmp_path: Path) -> None:
    path = next((run / "checkpoints").glob("*.pt"))
    state = torch.load(path, weights_only=True)
    state["model"]["odd_buffer"] = torch.tensor([1.0, INF])
    beside = save(state, path.with_name("step-00000099.pt"))
    try:
        assert examine_state(beside).finite  # the manifest knows no parameter of that name
        moved = save(state, tmp_path / "step-00000099.pt")
        assert [bad.name for bad in examine_state(moved).bad] == ["model.odd_buffer"]
    finally:
        beside.unlink()


def healthy_beside(tmp_path: Path, *, finite: bool, bad: Any = ()) -> Path:
    path = save({"model": {"weight": torch.tensor([NAN])}}, tmp_path / "step-00000004.pt")
    health = {"step": 4, "healthy": finite, "finite": finite, "bad": list(bad)}
    health_path(path).write_text(json.dumps(health))
    return path


def test_a_health_file_is_believed_unless_told_not_to(tmp_path: Path) -> None:
    path = healthy_beside(tmp_path, finite=True)
    assert judge_state(path).state is State.GOOD
    assert judge_state(path, verify=True).state is State.BAD


def test_a_health_file_older_than_the_state_is_not_believed(tmp_path: Path) -> None:
    path = healthy_beside(tmp_path, finite=True)
    os.utime(health_path(path), ns=(0, 0))
    assert believed(path) is None
    assert judge_state(path).state is State.BAD


def test_what_a_health_file_names_is_said(tmp_path: Path) -> None:
    bad = {"name": "model.w", "kind": "param", "parameter": "w", "nan": 2, "inf": 0, "numel": 9}
    path = healthy_beside(tmp_path, finite=False, bad=[bad, "rubbish", {"nan": "many"}])
    judgement = judge_state(path)
    assert (judgement.state, judgement.reason) == (State.BAD, "model.w (param): 2 NaN of 9")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"finite": 1}', '{"finite": null}', "\x00"])
def test_a_health_file_that_says_nothing_is_passed_over(text: str, tmp_path: Path) -> None:
    path = healthy_beside(tmp_path, finite=True)
    health_path(path).write_text(text)
    assert judge_state(path).state is State.BAD


def test_a_foreign_file_of_that_name_has_no_health_file(tmp_path: Path) -> None:
    path = save(nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    (tmp_path / "model.health.json").write_text('{"finite": false}')
    assert judge_state(path).state is State.GOOD


def test_memory_that_is_not_there_is_one_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("forensics.replay.health.state_survey.scan_tensor", exhausted)
    judgement = judge_state(save(training_state(), tmp_path / "a.pt"))
    assert judgement.state is State.UNTESTABLE
    assert judgement.reason == "needs more memory than there is"


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = save(training_state(), tmp_path / "a.pt")
    examine_state(path, progress=lambda seen, size: told.append((seen, size)))
    assert [seen for seen, _ in told] == sorted(seen for seen, _ in told)
    assert {size for _, size in told} == {path.stat().st_size}
    assert 0 < told[-1][0] <= told[-1][1]
