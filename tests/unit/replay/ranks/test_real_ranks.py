"""Bisecting by two real ranks: the answer of one process, and what becomes of a rank that ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forensics.diagnose.bisection_file import bisection_from_json
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus, FaultKind
from forensics.errors import UsageError
from forensics.render.bisect_text import render_bisect_text
from forensics.replay.bisect import bisect_run
from forensics.replay.capsule.running import run_capsule
from forensics.replay.ranks.leading import check_ranks
from tests.unit.replay.ranks.bisecting import FAULTS, FURTHER, recipe_of
from tests.unit.replay.ranks.faulty_ranks import BAD_SAMPLE, BAD_STEP, SAMPLES

SOON = 60
"""Seconds on a machine that has other things to do; unattended it would be half an hour."""
ORIGINS = {
    "nan-batch": (FaultKind.NAN, "input", "input", 1),
    "logarithm": (FaultKind.NAN, "loss", "aten.log", 1),
    "division": (FaultKind.NAN, "loss", "aten.div", 0),
    "gradient": (FaultKind.INF, "backward", "aten.div", 1),
    "raises": (FaultKind.EXCEPTION, "loss", "ValueError", 1),
}


def by_all_ranks(runs: Path, fault: str) -> BisectionResult:
    document = json.loads((runs / fault / "bisect.json").read_text())
    result, notes = bisection_from_json(document["bisection"])
    assert result is not None
    assert notes == ()
    return result


def told(runs: Path, scenario: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / f"{scenario}-{rank}.json").read_text())
    return found


def as_words(result: BisectionResult) -> str:
    """Everything in it but how the reduction was made; NaN is equal to itself as text."""
    return repr({**vars(result), "reduction": "", "capsule": "", "capsule_bytes": 0, "notes": ()})


@pytest.fixture(scope="module")
def emulated(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, BisectionResult]:
    """The same runs bisected by one process; what the ranks have found is kept beside."""
    found = {}
    for fault in (*FAULTS, "raises"):
        kept = (runs / fault / "bisect.json").read_bytes()
        capsule = tmp_path_factory.mktemp("capsules") / fault
        found[fault] = bisect_run(
            runs / fault, recipe=recipe_of(fault), further_steps=FURTHER, capsule=capsule
        )
        (runs / fault / "bisect.json").write_bytes(kept)
    return found


@pytest.mark.parametrize("fault", [*FAULTS, "raises"])
def test_all_ranks_give_the_answer_of_one_process(
    runs: Path, emulated: dict[str, BisectionResult], fault: str
) -> None:
    """Step, phase, operator, module, parameter, rank, samples, what-ifs, remedy, faithfulness."""
    real = by_all_ranks(runs, fault)
    assert as_words(real) == as_words(emulated[fault]).replace(
        emulated[fault].next_command, real.next_command
    )
    assert (real.reduction, emulated[fault].reduction) == ("real", "emulated")


@pytest.mark.parametrize("fault", ORIGINS)
def test_the_answer_names_step_operator_rank_and_sample(runs: Path, fault: str) -> None:
    result = by_all_ranks(runs, fault)
    kind, phase, operator, rank = ORIGINS[fault]
    assert result.origin is not None
    assert (result.origin.kind, result.origin.phase, result.origin.operator) == (
        kind,
        phase,
        operator,
    )
    assert (result.first_bad_step, result.rank, result.bad_ranks) == (BAD_STEP, rank, (rank,))
    assert (result.samples, result.batch_size) == ((BAD_SAMPLE,), 2 * SAMPLES)
    assert result.reproduces
    assert result.departure is None
    assert "rank 1's batch" in result.remedy[0] or rank == 0


def test_what_rank_zero_waited_for_is_told_of_the_rank_that_raised(runs: Path) -> None:
    result = by_all_ranks(runs, "raises")
    assert result.bad.startswith(f"rank 1 raised at step {BAD_STEP}: ValueError: a target of no")
    assert "rank 1 alone: the others' own part of the step is sound" in render_bisect_text(result)


def test_what_all_ranks_do_alike_is_blamed_on_none(runs: Path) -> None:
    result = by_all_ranks(runs, "overflow")
    assert result.bad_ranks == (0, 1)
    assert result.samples == ()
    assert "ranks 0, 1 are bad by themselves" in render_bisect_text(result)


def test_a_healthy_run_stays_healthy(runs: Path) -> None:
    """Its single steps are looked into, too: what they applied is right."""
    result = by_all_ranks(runs, "healthy")
    assert result.status is BisectStatus.HEALTHY
    assert "what was applied is right" in result.reason
    assert result.departure is None


def test_what_single_steps_apply_is_checked_with_several_ranks(runs: Path) -> None:
    result = by_all_ranks(runs, "average")
    assert result.origin is not None
    assert (result.origin.kind, result.origin.operator) == (FaultKind.APPLIED, "ema.update")
    assert (result.first_bad_step, result.bad_ranks) == (0, ())
    text = render_bisect_text(result)
    assert "none by itself: each one's own loss and gradients are finite" in text
    assert "replayed by all ranks, with the real reduction" in text


def test_the_text_says_how_it_was_replayed(
    runs: Path, emulated: dict[str, BisectionResult]
) -> None:
    one, all_ranks = (
        " ".join(render_bisect_text(result).split())
        for result in (emulated["logarithm"], by_all_ranks(runs, "logarithm"))
    )
    assert "by all ranks, with the real reduction: faithful" in all_ranks
    assert "rank by rank in one process, the reduction emulated: faithful" in one


def test_more_processes_than_ranks_are_told_both_ways() -> None:
    with pytest.raises(UsageError) as refused:
        check_ranks(2, 3, Path("runs/x"), " --recipe train.py:it")
    assert refused.value.line() == (
        "runs/x: was trained on 2 ranks, and 3 processes are to replay it; `torchrun --standalone "
        "--nproc-per-node 2 -m forensics bisect runs/x --recipe train.py:it`, or `forensics bisect "
        "runs/x --recipe train.py:it` in one process"
    )
    check_ranks(2, 2, Path("runs/x"), "")


def test_rank_zero_alone_speaks(runs: Path) -> None:
    """Of all these bisections; of the other rank nothing but its exit codes is known."""
    leading, following = told(runs, "faults", 0), told(runs, "faults", 1)
    assert leading["codes"] == {**following["codes"], **leading["codes"]}
    assert leading["printed"].count("FIRST BAD STEP") == len(FAULTS) - 1
    assert following["printed"] == ""


def test_another_number_of_processes_than_of_ranks_is_refused(runs: Path) -> None:
    codes = [told(runs, "faults", rank)["codes"]["alone"] for rank in (0, 1)]
    assert codes == [2, 2]
    (line,) = [x for x in told(runs, "faults", 0)["printed"].splitlines() if "processes" in x]
    assert "was trained on 1 rank, and 2 processes are to replay it" in line
    assert line.endswith(f"`forensics bisect {runs / 'alone'}` in one process")


# -- a rank that ends before the others -----------------------------------------------------------


def test_a_killed_rank_leaves_a_partial_answer(runs: Path) -> None:
    leading = told(runs, "killed", 0)
    assert leading["codes"]["nan-batch"] == 130
    assert leading["codes"]["nan-batch seconds"] < SOON
    answer = json.loads(leading["printed"])["bisection"]
    assert answer["status"] == "partial"
    assert answer["reason"] == "stopped at step 4: another rank of the replay has ended"
    assert not (runs / "killed-1.json").exists()


def test_an_interrupt_of_rank_zero_ends_the_others_too(runs: Path) -> None:
    leading, following = told(runs, "interrupted", 0), told(runs, "interrupted", 1)
    for rank in (leading, following):
        assert rank["codes"]["nan-batch"] == 130
        assert rank["codes"]["nan-batch seconds"] < SOON
    answer = json.loads(leading["printed"])["bisection"]
    assert (answer["status"], answer["reason"]) == ("partial", "stopped at step 4")
    assert following["printed"].splitlines() == [
        "forensics: another rank of the replay has ended, so this one ends, too"
    ]


def test_an_answer_that_was_cut_short_replaces_no_whole_one(runs: Path) -> None:
    assert by_all_ranks(runs, "nan-batch").first_bad_step == BAD_STEP


# -- capsules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*ORIGINS, "overflow"])
def test_the_step_of_the_bad_rank_is_replayed_from_its_capsule(
    emulated: dict[str, BisectionResult], fault: str
) -> None:
    result = emulated[fault]
    rank = result.bad_ranks[0]
    assert f"the capsule holds the step of rank {rank} alone" in result.notes
    verdict = run_capsule(result.capsule, recipe=recipe_of(fault))
    assert verdict.confirmed, verdict.differences
    assert result.origin is not None
    assert verdict.found.operator == result.origin.operator
