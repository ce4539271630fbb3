"""broken-log: what the reader had to mend, weighed by what was lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.broken_log import broken_log
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Ended, Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import Repair, StepTable
from forensics.runlog.steps_csv import read_steps
from tests.unit.diagnose.snapshot_runs import found, signals_of


def judge(*repairs: Repair, rows: int = 100) -> list[Finding]:
    columns = {"step": np.arange(rows), "loss": np.linspace(3, 2, rows)}
    return found(broken_log, signals_of(columns=columns, repairs=repairs))


def test_fires_as_info_on_a_torn_last_line() -> None:
    (finding,) = judge(Repair("torn-last-line", "last line cut, dropped", line=101, lossy=True))
    assert finding.severity is Severity.INFO
    assert finding.first_step == finding.last_step == 99
    assert "line 101" in finding.message


@pytest.mark.parametrize("kind", ["nul-bytes", "glued-rows"])
def test_fires_as_warning_on_damage(kind: str) -> None:
    (finding,) = judge(Repair(kind, "512 bytes", step=40))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == 40


def test_fires_as_warning_on_anything_that_lost_more_than_a_value_or_two() -> None:
    repairs = [Repair("unparsable-cells", f"cell {i}", step=i, lossy=True) for i in (7, 30)]
    (finding,) = judge(*repairs)
    assert finding.severity is Severity.INFO  # two odd cells hide nothing
    (finding,) = judge(repairs[0], Repair("unparsable-cells", "x", step=30, lossy=True, count=2))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (7, 30)
    assert "1 more" in finding.message


def test_fires_once_a_kind_and_inside_the_table() -> None:
    findings = judge(
        Repair("nul-bytes", "a", step=10_000),
        Repair("nul-bytes", "b"),
        Repair("unordered-steps", "c", step=5),
    )
    assert len(findings) == 2
    assert all(0 <= f.first_step <= f.last_step <= 99 for f in findings)


def ended(how: str, step: int | None, rows: int = 20) -> list[Finding]:
    columns = {"step": np.arange(rows), "loss": np.linspace(3, 2, rows)}
    manifest = Manifest(ended=Ended(how, step))
    return found(broken_log, signals_of(columns=columns, manifest=manifest))


def test_fires_where_the_run_went_on_beyond_the_end_of_its_log() -> None:
    (finding,) = ended("finished", 79)
    assert finding.severity is Severity.WARNING
    assert finding.first_step == finding.last_step == 19
    assert "ends at step 19 and the run at 79" in finding.message
    assert "60 rows" in finding.message


@pytest.mark.parametrize("how", ["finished", "interrupted", "exception", "alarm"])
@pytest.mark.parametrize("step", [None, 10, 19, 20])
def test_silent_where_the_log_reaches_the_end_of_the_run(how: str, step: int | None) -> None:
    assert ended(how, step) == []


def test_fires_as_info_on_a_column_that_stands_still() -> None:
    columns = {"step": np.arange(80), "loss": np.full(80, 0.6931)}
    (finding,) = found(broken_log, signals_of(columns=columns))
    assert finding.severity is Severity.INFO
    assert "0.693" in finding.message


def test_fires_on_a_file_cut_by_a_crash(tmp_path: Path) -> None:
    lines = ["step,loss", *(f"{i},{3 - i / 100}" for i in range(60))]
    path = tmp_path / "steps.csv"
    path.write_bytes(("\n".join(lines) + "\n60,2.").encode() + bytes(256))
    signals = Signals(Run(path=path, steps=read_steps(path)))
    findings = found(broken_log, signals)
    assert Severity.WARNING in {f.severity for f in findings}


def test_silent_on_a_format_that_is_only_unusual() -> None:
    assert not judge(Repair("crlf", "Windows line ends"), Repair("byte-order-mark", "BOM"))


def test_silent_on_what_resume_seam_tells_and_on_a_sound_log() -> None:
    assert not judge(
        Repair("repeated-steps", "x", lossy=True), Repair("second-run", "y", lossy=True)
    )
    assert not judge()


def test_silent_on_an_empty_table() -> None:
    signals = Signals(Run(Path("x"), StepTable.from_arrays({"step": np.zeros(0)})))
    assert list(broken_log.find(signals, broken_log.defaults)) == []


def test_rows_that_could_not_be_written_are_told_once_with_the_reason() -> None:
    clause = "steps.csv: 1,030 writes failed between steps 970 and 1999 (No space left on device)"
    columns = {"step": np.arange(970), "loss": np.linspace(3, 2, 970)}
    manifest = Manifest(ended=Ended("finished", 1999), missing=(clause, "params: 1 write failed"))
    (finding,) = found(broken_log, signals_of(columns=columns, manifest=manifest))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (970, 1999)
    assert finding.message.startswith("1,030 rows between steps 970 and 1,999 could not be written")
    assert "cut" not in finding.cause
