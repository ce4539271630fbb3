"""lost-rank: one rank ended, or hangs, where the others wait for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.lost_rank import lost_rank
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Ended, Manifest
from forensics.runlog.rank_files import RankMark, Stage
from tests.unit.diagnose import snapshot_runs

ROWS = 50
STEP_S = 0.5


def mark(rank: int, step: int, stage: Stage, there_s: float = 0.0, **ended: str) -> RankMark:
    return RankMark(rank, step, stage, 1000.0, 1000.0 + there_s, **ended)


def found(
    *marks: RankMark, ended: Ended | None = None, unfinished: bool = False, step_s: float = STEP_S
) -> list[Finding]:
    columns = {
        "step": np.arange(ROWS),
        "loss": np.full(ROWS, 2.0),
        "time_s": step_s * np.arange(ROWS),
    }
    run = snapshot_runs.signals_of(columns=columns, manifest=Manifest(world_size=2)).run
    manifest = replace(run.manifest or Manifest(), ended=ended)
    run = replace(run, rank_marks=marks, manifest=manifest, unfinished=unfinished)
    return snapshot_runs.found(lost_rank, Signals(run))


CLOSED = "RuntimeError: Connection closed by peer"


def test_fires_on_the_rank_that_raised_though_others_raise_after_it() -> None:
    (finding,) = found(
        mark(0, 50, Stage.REDUCTION, 2, ended="exception", message=CLOSED),
        mark(1, 50, Stage.OWN, ended="exception", message="ValueError: bad data"),
        ended=Ended("exception", 50, CLOSED),
    )
    assert finding.severity is Severity.ERROR
    assert (finding.subject, finding.first_step) == ("rank 1", 50)
    assert "ValueError: bad data" in finding.message
    assert "Connection" not in finding.message


def test_a_rank_that_raised_of_a_closed_connection_waited_wherever_it_stood() -> None:
    """Trainers have collectives of their own, before the reduction."""
    left = mark(0, 50, Stage.OWN, ended="exception", message=CLOSED)
    (finding,) = found(
        left,
        mark(1, 50, Stage.OWN, ended="exception", message="ValueError: bad data"),
        ended=Ended("exception", 50, CLOSED),
    )
    assert finding.severity is Severity.ERROR
    assert finding.message == (
        "rank 1 raised at step 50: ValueError: bad data; rank 0 waited for it"
    )
    (killed,) = found(left, mark(1, 50, Stage.OWN), ended=Ended("exception", 50, CLOSED))
    assert killed.cause.endswith("The errors of the other ranks are of the connection it left.")
    assert killed.subject == "rank 1"
    assert killed.message.endswith("(data, forward or backward); rank 0 waited")
    other = mark(1, 50, Stage.OWN, ended="exception", message=CLOSED)
    assert found(left, other, ended=Ended("exception", 50, CLOSED)) == []


def test_fires_on_the_rank_that_was_killed_while_the_others_raise() -> None:
    (finding,) = found(
        mark(0, 50, Stage.REDUCTION, ended="exception", message=CLOSED),
        mark(1, 50, Stage.OWN),
        mark(2, 50, Stage.REDUCTION, ended="exception", message=CLOSED),
        ended=Ended("exception", 50, CLOSED),
    )
    assert finding.severity is Severity.ERROR
    assert finding.subject == "rank 1"
    assert "fell silent" in finding.message
    assert "2 other ranks waited" in finding.message


def test_rank_zero_raised_though_it_was_killed_before_its_mark_says_so() -> None:
    (finding,) = found(
        mark(0, 50, Stage.REDUCTION),
        mark(1, 49, Stage.REDUCED),
        ended=Ended("exception", 50, CLOSED),
    )
    assert finding.severity is Severity.ERROR
    assert finding.subject == "rank 1"
    assert "rank 1 fell silent" in finding.message
    (finding,) = found(
        mark(0, 50, Stage.OWN),
        mark(1, 50, Stage.REDUCTION, ended="exception", message=CLOSED),
        ended=Ended("exception", 50, "ValueError: bad data"),
    )
    assert finding.message.startswith("rank 0 raised at step 50: ValueError: bad data")


@pytest.mark.parametrize(
    ("waited", "severity"), [(61, Severity.WARNING), (299, Severity.WARNING), (301, Severity.ERROR)]
)
@pytest.mark.parametrize("unfinished", [True, False])
def test_fires_on_a_rank_that_keeps_the_others_waiting(
    waited: float, severity: Severity, unfinished: bool
) -> None:
    (finding,) = found(
        mark(0, 50, Stage.REDUCTION, waited), mark(1, 49, Stage.REDUCED), unfinished=unfinished
    )
    assert finding.severity is severity
    assert finding.first_step == 49
    assert f"waited for {waited} seconds" in finding.message


def test_a_wait_is_held_against_the_time_of_a_step() -> None:
    marks = (mark(0, 50, Stage.REDUCTION, 100), mark(1, 50, Stage.OWN))
    assert found(*marks, unfinished=True, step_s=4.9)
    assert not found(*marks, unfinished=True, step_s=5.1)


def test_a_run_that_was_cut_off_as_a_whole_is_only_noted() -> None:
    (finding,) = found(mark(0, 50, Stage.REDUCTION, 1), mark(1, 50, Stage.OWN))
    assert finding.severity is Severity.INFO
    assert "If one rank died by itself" in finding.cause


@pytest.mark.parametrize("how", ["finished", "interrupted", "alarm"])
def test_silent_on_a_run_that_ended_well(how: str) -> None:
    assert not found(
        mark(0, 50, Stage.REDUCTION, 900, ended=how),
        mark(1, 50, Stage.OWN, ended=how),
        ended=Ended(how, 49),
    )


def test_silent_on_a_run_that_goes_on() -> None:
    assert not found(mark(0, 50, Stage.REDUCTION, 59), mark(1, 50, Stage.OWN), unfinished=True)


def test_silent_where_all_ranks_stand_at_the_same_place_or_nobody_waits() -> None:
    assert not found(mark(0, 50, Stage.OWN, 900), mark(1, 50, Stage.OWN, 900), unfinished=True)
    assert not found(mark(0, 50, Stage.REDUCED, 900), mark(1, 50, Stage.OWN, 900))


def test_silent_where_all_raise_the_same_at_the_same_place() -> None:
    raised = {"ended": "exception", "message": "ValueError: shapes"}
    marks = [mark(rank, 0, Stage.OWN, **raised) for rank in range(2)]
    assert not found(*marks, ended=Ended("exception", 0, raised["message"]))
