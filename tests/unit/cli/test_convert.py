"""``forensics convert``, and what ``report`` says of a log that another program wrote."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from forensics.cli import main
from forensics.runlog.run import load_run
from forensics.runlog.steps_csv import read_steps
from tests.unit.runlog.importers.samples import FILES, SAMPLES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def records(*rows: dict[str, object], **more: object) -> str:
    return json.dumps({"log_history": rows, **more})


SICK = records(
    *({"loss": 2.0, "grad_norm": 1.0, "step": 25 * i} for i in range(1, 21)),
    *({"loss": 0.0, "grad_norm": float("nan"), "step": 25 * i} for i in range(21, 41)),
)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_table_comes_back_value_for_value(name: str) -> None:
    source = write(FILES.get(name, "source.log"), SAMPLES[name])
    assert main(["convert", source, "--out", "steps.csv"]) == 0
    first, again = load_run(source).steps, read_steps(Path("steps.csv"))
    assert set(first) <= set(again)
    for column in first:
        np.testing.assert_array_equal(first[column], again[column])
        np.testing.assert_array_equal(first.present(column), again.present(column))
    assert again.interval == first.interval


def test_what_was_inferred_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", write("s.json", SICK), "--out", "steps.csv"]) == 0
    said = capsys.readouterr().err
    assert "40 rows read as hf-trainer-state" in said
    assert "inferred: loss 0.0 beside a non-finite gradient norm read as NaN (20 rows)" in said
    assert "loss is a mean over the steps of the row" in said
    assert "this log does not tell the loss scale" in said


def test_with_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", write("s.json", SICK), "--out", "steps.csv", "--report"]) == 0
    assert "between 501 and 525" in capsys.readouterr().out.replace("\n          ", " ")


@pytest.mark.parametrize(
    ("rows", "watched", "told"), [(5, True, True), (4, True, False), (5, False, False)]
)
def test_a_long_table_is_written_with_a_bar_where_somebody_watches(
    rows: int,
    watched: bool,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from forensics.cli import convert

    source = write("it.csv", "step,loss\n" + "".join(f"{k},{2 - 0.1 * k}\n" for k in range(rows)))
    monkeypatch.setattr(convert, "MANY_ROWS", 5)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched, raising=False)
    assert main(["convert", source, "--out", "steps.csv"]) == 0
    assert ("writing" in capsys.readouterr().err) == told
    assert len(read_steps(Path("steps.csv"))) == rows


def test_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", write("a.jsonl", SAMPLES["jsonl"]), "--out", "-"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,")
    assert out.splitlines()[1] == "0,0.001,,,2.0,,,"


def test_several_files_are_one_run() -> None:
    lines = SAMPLES["jsonl"].splitlines(keepends=True)
    one, two = write("1.jsonl", "".join(lines[:5])), write("2.jsonl", "".join(lines[5:]))
    assert main(["convert", one, two, "--out", "steps.csv"]) == 0
    assert read_steps(Path("steps.csv")).step.tolist() == list(range(12))


def test_the_source_is_not_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    source = write("a.jsonl", SAMPLES["jsonl"])
    assert main(["convert", source, "--out", source]) == 2
    assert Path(source).read_text() == SAMPLES["jsonl"]
    assert "is what is to be read" in capsys.readouterr().err


def test_nothing_is_written_where_nothing_can_be_read() -> None:
    assert main(["convert", write("a.txt", "hello\n"), "--out", "steps.csv"]) == 2
    assert not Path("steps.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert"], "needs a PATH and --out"),
        (["convert", "a.jsonl", "--out", "-", "--report"], "print into each other"),
        (["convert", "a.jsonl", "--out", "s.csv", "--map", "loss"], "'loss' is not COLUMN=NAME"),
        (["convert", "a.jsonl", "--out", "s.csv", "--format-in", "nope"], "no format is called"),
        (["convert", "a.jsonl", "--out", "s.csv", "--map", "loss=x"], "the log has no 'x'"),
        (["report", "a.jsonl", "--map", "loss=x"], "the log has no 'x'"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("a.jsonl", SAMPLES["jsonl"])
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--formats"]) == 0
    out = capsys.readouterr().out
    assert "hf-trainer-state" in out
    assert "tensorboard" in out


def test_a_report_dates_what_a_sparse_log_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", write("s.json", SICK)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "40 rows, one every 25 steps, 25 to 1,000 · read as hf-trainer-state" in out
    assert "Loss is NaN from a step between 501 and 525 on" in out
    assert "501–525 → end" in out
    assert "all 20 rows until the end" in out


def test_the_json_of_a_sparse_log_has_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", write("s.json", SICK), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)["reports"][0]
    assert (report["run"]["interval"], report["run"]["unit"]) == (25, "step")
    root = report["findings"][report["verdict"]["root"]]
    assert (root["earliest_step"], root["first_step"]) == (501, 525)


def test_a_report_on_standard_input_and_on_joined_files(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAMPLES["jsonl"].encode())))
    assert main(["report", "-"]) == 0
    assert "read as jsonl" in capsys.readouterr().out
    lines = SAMPLES["jsonl"].splitlines(keepends=True)
    parts = [write("1.jsonl", "".join(lines[:5])), write("2.jsonl", "".join(lines[5:]))]
    assert main(["report", *parts, "--join"]) == 0
    assert "12 steps" in capsys.readouterr().out


def test_a_guess_at_the_format_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", write("a.jsonl", SAMPLES["jsonl"])]) == 0
    assert "by its looks (JSON lines with" in " ".join(capsys.readouterr().out.split())


def test_epochs_are_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i},0.5,{2 - i / 50},2.0\n" for i in range(30))
    rows += "".join(f"{i},0.5,nan,nan\n" for i in range(30, 40))
    assert main(["report", write("training.log", "epoch,acc,loss,val_loss\n" + rows)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "40 epochs" in out
    assert "Loss is NaN from epoch 30 on" in out
    assert "all 10 epochs until the end" in out
