"""The verbs that draw: what they write, where, and how they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from PIL import Image

from forensics.cli import main

SAMPLES = Path(__file__).parents[3] / "sample_runs"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two recorded runs, to be drawn beside."""
    for name in ("fp16-overflow", "nan-applied"):
        copytree(SAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["plot", "nan-applied"], "nan-applied-run.png"),
        (["plot-scale", "fp16-overflow/steps.csv"], "fp16-overflow-scale.png"),
        (["plot-params", "nan-applied/"], "nan-applied-params.png"),
        (["plot-compare", "nan-applied", "fp16-overflow"], "nan-applied-compare.png"),
    ],
)
def test_a_picture_goes_beside_the_run_and_its_path_is_printed(
    arguments: list[str], written: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(runs.rglob("*"))
    assert main(arguments) == 0
    assert capsys.readouterr() == (f"{written}\n", "")
    assert set(runs.rglob("*")) - before == {runs / written}
    with Image.open(runs / written) as image:
        assert image.width == 2000
        assert image.info["dpi"] == pytest.approx((200, 200), abs=0.1)


def test_two_logs_with_other_names_are_drawn_by_a_map_of_both(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shift in (("before", 0), ("after", 1)):
        rows = "".join(f"{k},{3 - 0.1 * k + shift * (k > 5)}\n" for k in range(20))
        Path(f"{name}.csv").write_text(f"it,train/total\n{rows}")
    arguments = ["plot-compare", "before.csv", "after.csv", "--out", "apart.svg"]
    mapping = ["--map", "loss=train/total", "--map", "step=it"]
    assert main(arguments) == 2
    assert "before.csv" in capsys.readouterr().err
    assert main([*arguments, *mapping]) == 0
    assert main(["compare", "before.csv", "after.csv", *mapping]) == 1
    assert "loss at 6" in capsys.readouterr().out


def test_a_run_called_dot_has_a_name_all_the_same(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs / "nan-applied")
    assert main(["plot", "."]) == 0
    assert Path(capsys.readouterr().out.strip()) == runs / "nan-applied-run.png"


@pytest.mark.parametrize(
    ("suffix", "head"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")]
)
def test_the_ending_chooses_the_format(suffix: str, head: bytes, runs: Path) -> None:
    out = runs / f"picture{suffix}"
    assert main(["plot-params", "nan-applied", "--out", str(out)]) == 0
    first = out.read_bytes()
    assert first.startswith(head)
    assert main(["plot-params", "nan-applied", "--out", str(out)]) == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plot", "nan-applied", "--out", "x.gif"], "x.gif: no kind of picture has this ending"),
        (["plot", "nan-applied", "--out", "x"], "end it in .png, .svg, .pdf"),
        (["plot", "nowhere"], "nowhere: no such file or directory"),
        (["plot", "nan-applied", "--out", "no/such/x.png"], "no/such/x.png: "),
        (["plot-scale", "nan-applied"], "fp32 trains without a loss scaler"),
        (["plot-params", "loss.csv"], "has no per-parameter snapshots"),
        (["plot-compare", "nan-applied", "loss.csv"], "no step in common"),
        (["plot-scale", "loss.csv"], "no loss scale to plot: none is logged"),
        (["plot-compare", "nan-applied", "nan-applied", "--rtol", "-1"], "--rtol"),
    ],
)
def test_what_cannot_be_drawn_is_2_in_one_line(
    arguments: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "loss.csv").write_text("step,loss\n1000,2.5\n1001,2.4\n")
    before = set(runs.rglob("*"))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert set(runs.rglob("*")) == before


def test_standard_input_needs_a_place(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forensics", "plot", "-"],
        input=b"step,loss\n0,2.5\n1,2.4\n",
        capture_output=True,
        check=False,
        cwd=runs,
    )
    assert done.returncode == 2
    assert b"say where with --out" in done.stderr


def test_the_log_of_another_program_is_drawn_beside_it(runs: Path) -> None:
    (runs / "train.csv").write_text("epoch,train/total\n" + "1,2.5\n2,2.25\n3,2.0\n" * 1)
    assert main(["plot", "train.csv", "--map", "loss=train/total"]) == 0
    assert (runs / "train-run.png").exists()


def test_show_draws_in_the_terminal_and_writes_no_file(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotext", reason="needs plotext")
    before = set(runs.rglob("*"))
    for verb, title in (("plot", "loss"), ("plot-scale", "loss scale")):
        assert main([verb, "fp16-overflow", "--show"]) == 0
        assert title in capsys.readouterr().out.splitlines()[0]
    assert main(["plot-compare", "nan-applied", "fp16-overflow", "--show"]) == 0
    assert set(runs.rglob("*")) == before


def test_show_without_its_library_is_2_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("forensics.render.terminal_plot.find_spec", lambda name: None)
    assert main(["plot", "nowhere", "--show"]) == 2
    assert "pip install 'plotext<6'" in capsys.readouterr().err


def test_a_report_loads_no_drawing_and_a_plot_no_pyplot(runs: Path) -> None:
    code = (
        "import sys; from forensics.cli import main; main(sys.argv[1:]); "
        "print([m for m in ('matplotlib', 'matplotlib.pyplot', 'plotext', 'torch', 'pandas') "
        "if m in sys.modules])"
    )
    for arguments, loaded in ((["report"], "[]"), (["plot"], "['matplotlib']")):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, "nan-applied"],
            capture_output=True,
            text=True,
            check=True,
            cwd=runs,
        )
        assert done.stdout.splitlines()[-1] == loaded
