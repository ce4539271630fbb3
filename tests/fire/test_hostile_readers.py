"""Readers of text: nesting without end, headers and cells without end, steps beyond any integer,
names that lead elsewhere, and files that are none."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.runlog.run import load_run
from tests.fire.amount import FULL, amount
from tests.fire.hostile import SAMPLES
from tests.fire.limits import limited
from tests.fire.mutation import logs

DEEP = ("[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000, '[{"a":' * 100_000)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with every part that a reader may open."""
    run = shutil.copytree(SAMPLES / "nan-applied", tmp_path / "run")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-00000004.pt").write_bytes(b"PK\x03\x04")
    (run / "checkpoints" / "step-00000004.health.json").write_text('{"healthy": true}')
    (run / "ranks").mkdir()
    (run / "ranks" / "rank-00001.csv").write_text("step,loss\n0,1.0\n")
    (run / "superseded" / "1").mkdir(parents=True)
    shutil.copy(run / "steps.csv", run / "superseded" / "1" / "steps.csv")
    (run / "bisect.json").write_text("{}")
    (run / "run.lock").write_text("{}")
    shutil.copytree(run / "params", run / "activations")
    (run / "params" / "part-00000007.arrows").write_bytes(b"x" * 100)
    return run


PARTS = (
    "run.json", "steps.csv", "bisect.json", "run.lock", "checkpoints/step-00000004.health.json",
    "checkpoints/step-00000004.pt", "ranks/rank-00001.csv", "superseded/1/steps.csv",
    "params/part-00000000.parquet", "params/part-00000007.arrows",
    "activations/part-00000000.parquet",
)  # fmt: skip


def report(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a report, which is one line or none."""
    capsys.readouterr()
    with limited():
        code = main(["report", str(path), "--format", "json"])
    err = capsys.readouterr().err
    assert code in (0, 2), err
    assert len(err.splitlines()) == (code == 2), err
    assert len(err) < 2000
    return code, err


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
@pytest.mark.parametrize("part", [part for part in PARTS if part.endswith((".json", ".lock"))])
def test_deep_json_in_a_run(
    part: str, text: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / part).write_text(text)
    assert report(run, capsys) == (0, "")


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
@pytest.mark.parametrize("name", ["trainer_state.json", "history.jsonl", "log.txt", "log.json"])
def test_deep_json_as_a_log(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert report(path, capsys)[0] == 2
    good = logs()["history.jsonl"].decode()
    path.write_text(good + '{"step": 9999, "loss": 1.0, "x": ' + text + "\n" + good)
    report(path, capsys)


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_deep_json_in_a_sharded_state(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with limited():
        assert main(["inspect", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_header_of_millions_of_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wide.csv"
    many = amount(200_000, 2_000_000)
    for header in ("step,loss" + ",c" * many, ",".join(f"c{i}" for i in range(many // 4))):
        path.write_text(header + "\n0,1.0\n1,1.0\n")
        report(path, capsys)


@pytest.mark.parametrize("cell", ["x", "9", '"', ",", "\\", "é"])
def test_a_cell_of_tens_of_megabytes(
    cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "steps.csv"
    rows = [f"{i},{1 + i / 7}" for i in range(40)]
    path.write_text("\n".join(["step,loss", *rows[:20], "20," + cell * (20 << 20), *rows[21:], ""]))
    report(path, capsys)


@pytest.mark.parametrize(
    "step",
    ["9" * 19, "9" * 20, "9" * 5000, "-" + "9" * 19, "1e308", "1e18", "9223372036854775807",
     "-9223372036854775808", "4611686018427387904", "nan", "inf", "0x7fffffffffffffff"],
)  # fmt: skip
def test_steps_beyond_any_integer(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for header, row in (
        ("step,loss,skipped,scaler_scale", "{},1.5,0,2"),
        ("iter,train_loss", "{},1"),
    ):
        lines = [row.format(i) for i in range(50)]
        lines[30] = row.format(step)
        path = tmp_path / "steps.csv"
        path.write_text("\n".join([header, *lines, ""]))
        assert report(path, capsys)[0] == 0
        with limited():
            assert main(["plot", str(path), "--out", str(tmp_path / "x.svg")]) == 0
            assert main(["compare", str(path), str(path)]) == 0
            assert main(["convert", str(path), "--out", str(tmp_path / "out.csv")]) == 0
        steps = load_run(path).steps.step
        assert (steps[1:] > steps[:-1]).all()


KINDS = ("pipe", "endless", "folder", "loop", "nowhere")
LATER = () if FULL else ("ranks/rank-00001.csv", "superseded/1/steps.csv")


@pytest.mark.parametrize(
    ("part", "kind"),
    [(part, kind) for part in PARTS for kind in KINDS if kind != "pipe" or part not in LATER],
)
def test_a_part_that_is_no_file(
    part: str, kind: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / part
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"endless": "/dev/zero", "loop": path.name, "nowhere": "/nowhere"}[kind]
        path.symlink_to(target)
    report(run, capsys)
    if kind != "pipe" or path.suffix != ".csv":  # a pipe may be a log: it is waited for a little
        with limited():
            main(["params", str(run)])
            main(["scan", str(run)])
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "..", ".", "", "x" * 300,
     "a\0b", "link.safetensors", 7, None, ["x"]],
)  # fmt: skip
def test_a_shard_elsewhere(
    name: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (tmp_path / "secret.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (folder / "link.safetensors").symlink_to("../secret.safetensors")
    index = {"weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with limited():
        assert main(["inspect", str(folder)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "internal error" not in line
    assert len(line) < 1000
