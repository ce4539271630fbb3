"""Histories in one JSON document, and JSON that is no log of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forensics.errors import InputError
from forensics.runlog.log_facts import PER_EPOCH, PER_STEP
from forensics.runlog.log_search import glance
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.logs import column, read, same
from tests.unit.runlog.importers.samples import hf_state, lines_of

LOSS, VAL = [3.0, 2.0, 1.5, 1.25], [3.5, 2.5, 2.0, 1.75]
PAIRS = list(zip(LOSS, VAL, strict=True))
RECORDS = [{"epoch": i + 1, "train_loss": a, "val_loss": b} for i, (a, b) in enumerate(PAIRS)]


def by_index(values: list[float]) -> dict[str, float]:
    return {str(i): value for i, value in enumerate(values)}


@pytest.mark.parametrize(
    "document",
    [
        {"loss": LOSS, "accuracy": [0.5] * 4, "val_loss": VAL},
        {"train_loss": LOSS, "val_loss": VAL, "best_epoch": 3},
        {"train": {"loss": LOSS, "acc": [0.5] * 4}, "val": {"loss": VAL, "acc": [0.5] * 4}},
        {"args": {"betas": [0.9, 0.95]}, "results": {"train_losses": LOSS, "val_losses": VAL}},
        {"train": LOSS, "val": VAL},
        {"loss": by_index(LOSS), "val_loss": by_index(VAL)},
        {str(i): {"loss": a, "val_loss": b} for i, (a, b) in enumerate(PAIRS)},
        RECORDS,
        {"config": {"lr": 0.1}, "history": RECORDS, "best_val_loss": 1.75},
        [
            {
                "epoch": r["epoch"],
                "train": {"loss": r["train_loss"]},
                "val": {"loss": r["val_loss"]},
            }
            for r in RECORDS
        ],
    ],
    ids=range(10),
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_history_is_found_wherever_it_lies(
    document: Any, indent: int | None, tmp_path: Path
) -> None:
    table = read(tmp_path, json.dumps(document, indent=indent), name="x.json")
    assert table.source_format == "json-history"
    assert column(table, "loss") == LOSS
    assert column(table, "val_loss") == VAL
    assert table.facts is not None
    assert table.facts.unit == PER_EPOCH
    assert "missing-step-column" not in {repair.kind for repair in table.repairs}


def test_steps_and_rates_beside_the_loss(tmp_path: Path) -> None:
    document = {"steps": [10, 20, 30, 40], "train_loss": LOSS, "lrs": [0.1] * 4, "val_loss": [2.5]}
    table = read(tmp_path, json.dumps(document))
    assert table.step.tolist() == [10, 20, 30, 40]
    assert column(table, "lr") == [0.1] * 4
    assert not table.has("val_loss")
    assert table.facts is not None
    assert table.facts.unit == PER_STEP
    assert table.facts.notes == ("'val_loss' has 1 values and not 4: left out",)


def test_nan_and_null_are_kept_apart(tmp_path: Path) -> None:
    table = read(tmp_path, '{"loss": [3.0, NaN, null, Infinity], "val_loss": [null, 2, null, 1]}')
    assert same(column(table, "loss"), [3.0, float("nan"), None, float("inf")])
    assert column(table, "val_loss") == [None, 2.0, None, 1.0]


def test_a_pair_that_rises_is_no_loss(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read(tmp_path, json.dumps({"train": LOSS[::-1], "val": VAL[::-1]}))
    named = read(
        tmp_path,
        json.dumps({"train": LOSS[::-1], "val": VAL[::-1]}),
        format_in="json-history",
        mapping={"loss": "train"},
    )
    assert column(named, "loss") == LOSS[::-1]


def test_records_over_several_lines_that_follow_each_other(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": s, "loss": 3.0 / s}, indent=2) + "\n" for s in (1, 2, 3))
    table = read(tmp_path, text)
    assert table.step.tolist() == [1, 2, 3]
    assert table.repairs == ()


def test_a_document_that_is_cut_gives_what_is_whole(tmp_path: Path) -> None:
    records = json.dumps(RECORDS, indent=1)
    table = read(tmp_path, records[: records.rindex("epoch")])
    assert column(table, "loss") == LOSS[:3]
    lists = json.dumps({"loss": LOSS, "val_loss": VAL})
    table = read(tmp_path, lists[:-8])
    assert column(table, "loss") == LOSS
    assert column(table, "val_loss") == [3.5, 2.5, 2.0, None]
    assert "torn-document" in {repair.kind for repair in table.repairs}


def test_a_large_document_is_read_by_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["forensics.runlog.importers.json_history"]
    monkeypatch.setattr(module, "_LARGEST", 1 << 10)
    records = [{"step": s, "loss": 3.0 / s, "norm": 1.5} for s in range(1, 500)]
    assert read(tmp_path, json.dumps(records, indent=1)).step.tolist() == list(range(1, 500))


def test_bare_numbers_are_read_where_the_user_says_so(tmp_path: Path) -> None:
    text = json.dumps([*LOSS, 1.0])
    with pytest.raises(InputError, match="list of numbers without a name"):
        read(tmp_path, text)
    assert column(read(tmp_path, text, format_in="json-history"), "loss") == [*LOSS, 1.0]


SUMMARIES: dict[str, dict[str, Any]] = {
    "train_results.json": {"epoch": 3.0, "train_loss": 1.25, "train_runtime": 60.0},
    "wandb-summary.json": {"_step": 9, "_runtime": 9.0, "_timestamp": 1.7e9, "train/loss": 0.5}
    | {"_wandb": {"runtime": 9}},
    "config.json": {"hidden_size": 64, "torch_dtype": "bfloat16"},
    "args.json": {"learning_rate": 1e-4, "loss": "mse", "step": 3},
}


@pytest.mark.parametrize("name", SUMMARIES)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_summary_or_a_configuration_is_called_one(
    name: str, indent: int | None, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="one JSON object of single values"):
        read(tmp_path, json.dumps(SUMMARIES[name], indent=indent) + "\n", name=name)


def test_the_first_line_of_a_log_is_no_summary(tmp_path: Path) -> None:
    assert len(read(tmp_path, lines_of([{"step": 1, "loss": 2.5}]))) == 1
    assert len(read(tmp_path, lines_of([{"epoch": 1, "train_loss": 2.5, "val_loss": 3.0}]))) == 1


def test_what_lies_beside_a_trainers_state_does_not_hide_it(tmp_path: Path) -> None:
    for name, document in SUMMARIES.items():
        (tmp_path / name).write_text(json.dumps(document, indent=2))
    for rows in (4, 12):
        folder = tmp_path / f"checkpoint-{10 * rows}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(hf_state(rows))
        (folder / "config.json").write_text(json.dumps(SUMMARIES["config.json"]))
    table = load_run(tmp_path, Reading()).steps
    assert table.source_format == "hf-trainer-state"
    assert len(table) == 12


def test_an_empty_history_is_said_to_be_none(tmp_path: Path) -> None:
    text = '{"history": [], "best_val_loss": Infinity, "stopped_early": false}'
    for nothing in (text, "[]"):
        with pytest.raises(InputError, match="nothing was logged"):
            read(tmp_path, nothing)
    with pytest.raises(InputError, match="no list of numbers"):
        read(tmp_path, text, format_in="json-history")


def test_a_trainers_records_under_another_name_mean_what_they_mean(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"eval_loss": float("nan"), "eval_runtime": 9.0, "epoch": 1.0, "step": 28},
        {"loss": 2.5, "grad_norm": 1.5, "learning_rate": 1e-4, "epoch": 1.0, "step": 28},
        {"loss": 0.0, "grad_norm": float("nan"), "learning_rate": 1e-5, "epoch": 2.0, "step": 56},
    ]
    document = {"results": {"train_loss": 1.25}, "training_history": records}
    table = read(tmp_path, json.dumps(document, indent=1))
    assert table.step.tolist() == [28, 56]
    assert same(column(table, "loss"), [2.5, float("nan")])
    assert same(column(table, "val_loss"), [float("nan"), None])
    assert table.facts is not None
    assert table.facts.step_base == 1
    assert "read as NaN" in table.facts.notes[0]


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ({"kind": "forensics-capsule"}, "belongs to a capsule, which is no run"),
        ({"tool": "forensics", "version": "0.1.0"}, "is what forensics said of runs"),
    ],
)
def test_what_this_program_wrote_of_a_run_is_no_run(
    tmp_path: Path, mark: dict[str, str], said: str
) -> None:
    path = tmp_path / "capsule.json"
    path.write_text(json.dumps({"format_version": 1, **mark, "rows": RECORDS}, indent=1))
    assert glance(path) is None
    with pytest.raises(InputError, match=said):
        load_run(path)
    path.write_text(json.dumps({"format_version": 1, "rows": RECORDS}, indent=1))
    assert len(load_run(path).steps) == len(RECORDS)
