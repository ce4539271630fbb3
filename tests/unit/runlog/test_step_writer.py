"""Writing rows: whole lines, whatever happens."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import UsageError
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps_csv import StepWriter, read_steps
from tests.unit.runlog.logs import HEADER

ROW = {"step": 0, "loss": 2.5, "skipped": False, "skip_reason": "", "scaler_scale": 65536.0}


def lines(path: Path) -> list[str]:
    return path.read_text().split("\n")


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let every write beyond ``size`` bytes fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_cells_are_written_as_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    with StepWriter(path, (*CANONICAL_NAMES, "norm_overflow", "mine")) as writer:
        writer.write({**ROW, "lr": np.float64(1e-3), "loss": float("nan"), "mine": "a,b"})
        writer.write({"step": np.int64(1), "loss": float("-inf"), "skipped": np.True_})
        writer.write({"step": 2, "lr": None, "norm_overflow": 1, "mine": 3})
        writer.write({"step": 3, "skip_reason": 'other:"x"\n\0y', "loss": -0.0})
    assert lines(path) == [
        HEADER + ",norm_overflow,mine",
        '0,0.001,,,nan,0,,65536.0,,"a,b"',
        "1,,,,-inf,1,,,,",
        "2,,,,,,,,1,3.0",
        '3,,,,-0.0,,"other:""x"" y",,,',
        "",
    ]


def test_each_row_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    writer = StepWriter(path, CANONICAL_NAMES)
    for step in range(3):
        writer.write({**ROW, "step": step})
        assert read_steps(path).step.tolist() == list(range(step + 1))
    writer.close()
    writer.close()


def test_a_row_of_other_columns_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    with StepWriter(path, CANONICAL_NAMES) as writer:
        with pytest.raises(ValueError, match="no column"):
            writer.write({**ROW, "typo": 1})
        with pytest.raises(ValueError, match="could not convert"):
            writer.write({**ROW, "loss": "high"})
    assert lines(path) == [HEADER, ""]


@pytest.mark.parametrize("columns", [(), ("step", "step")])
def test_columns_must_be_unique_and_some(tmp_path: Path, columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="unique"):
        StepWriter(tmp_path / "steps.csv", columns)


@pytest.mark.parametrize(
    "torn", ["", "1,0.5", "1,0.001,1.5,1.0,2.5,0,,655", "\0\0\0", "x" * 200_000]
)
def test_appending_begins_on_a_line_of_its_own(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "steps.csv"
    with StepWriter(path, CANONICAL_NAMES) as writer:
        writer.write(ROW)
    with path.open("a") as file:
        file.write(torn)
    with StepWriter(path, CANONICAL_NAMES, append=True) as writer:
        writer.write({**ROW, "step": 1})
    table = read_steps(path)
    assert table.step.tolist() == [0, 1]
    assert table.repairs == ()


@pytest.mark.parametrize("left", [None, "", "step,lr,gr"])
def test_appending_to_nothing_begins_a_file(tmp_path: Path, left: str | None) -> None:
    path = tmp_path / "steps.csv"
    if left is not None:
        path.write_text(left)
    with StepWriter(path, CANONICAL_NAMES, append=True) as writer:
        writer.write(ROW)
    assert lines(path)[0] == HEADER
    assert len(read_steps(path)) == 1


def test_appending_other_columns_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    with StepWriter(path, CANONICAL_NAMES) as writer:
        writer.write(ROW)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="other columns"):
        StepWriter(path, (*CANONICAL_NAMES, "time_s"), append=True)
    assert path.read_bytes() == before


def test_a_full_disk_tears_no_row(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    writer = StepWriter(path, CANONICAL_NAMES)
    writer.write(ROW)
    with file_size_limit(path.stat().st_size + 9):
        for _ in range(2):
            with pytest.raises(OSError, match="large"):
                writer.write({**ROW, "step": 1})
    assert path.read_text().endswith("\n")
    writer.write({**ROW, "step": 2})
    writer.close()
    table = read_steps(path)
    assert table.step.tolist() == [0, 2]
    assert table.repairs == ()


WRITE_UNTIL_KILLED = """
import sys
from pathlib import Path
from forensics.runlog.params import ParamWriter
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps_csv import StepWriter
run = Path(sys.argv[1])
rows = StepWriter(run / "steps.csv", CANONICAL_NAMES)
snapshots = ParamWriter(run / "params", group=7)
for step in range(1_000_000):
    rows.write({"step": step, "loss": step / 3})
    snapshots.append(step, ["a", "b"], "param", {"grad_l2": [step, 2 * step]})
    print(step, flush=True)
"""


def test_kill_minus_nine_loses_nothing_that_was_written(tmp_path: Path) -> None:
    from forensics.runlog.params import ParamStore

    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        told = [int(output.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in output.read().split()]
    process.wait()
    table = read_steps(tmp_path / "steps.csv")
    assert table.step.tolist() == list(range(len(table)))
    assert len(table) > told[-1]
    assert table["loss"].tolist() == [step / 3 for step in range(len(table))]
    matrix = ParamStore(tmp_path / "params").matrix("grad_l2")
    assert matrix.steps.tolist() == list(range(len(matrix.steps)))
    assert len(matrix.steps) > told[-1]
    assert matrix.values[told[-1]].tolist() == [told[-1], 2 * told[-1]]
