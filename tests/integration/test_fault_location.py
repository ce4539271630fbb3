"""A dozen known faults, recorded and bisected: the right step and the right origin."""

import pytest

from benchmarks.fault_answers import FAULTS, Answer
from benchmarks.fault_location import findings_of, record, score
from forensics.diagnose.bisection_result import BisectStatus
from forensics.replay.bisect import bisect_run

pytestmark = pytest.mark.filterwarnings(r"ignore:std\(\). degrees of freedom:UserWarning")

REPRESENTATIVE = (
    "adam-eps-fp16",
    "batch-norm-of-one",
    "bit-flip",
    "clip-norm-overflow",
    "entropy-log-zero",
    "learned-scale-blowup",
    "one-bad-rank",
    "recompute-other-mask",
    "resume-without-scaler",
    "scheduler-ahead",
    "second-moment-overflow",
    "stale-update-bf16",
)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_the_fault_is_found_where_it_is(tmp_path, name):
    answer = next(a for a in FAULTS if a.recipe == name)
    record(answer, tmp_path / name)
    result = bisect_run(tmp_path / name, what_if=False)
    marks = score(answer, result)
    assert (marks.step, marks.origin) == (True, True), marks.said
    assert (marks.phase, marks.reproduces, marks.persistence) == (True, True, True), marks.said
    assert result.origin.summary, "one sentence with the numbers that prove it"


@pytest.mark.parametrize("name", ["control-scaler-warm-up", "control-loss-spike"])
def test_a_sound_run_is_left_in_peace(tmp_path, name):
    assert findings_of(name, tmp_path, what_if=False) == ""


def test_an_overflow_that_the_scaler_took_in_is_no_answer(tmp_path):
    forgotten = Answer(
        recipe="update-forgotten",
        step=43,
        phase=("unscale",),
        operators=("GradScaler.unscale_",),
        persistence="persistent",
    )
    record(forgotten, tmp_path / "run")
    marks = score(forgotten, bisect_run(tmp_path / "run", what_if=False))
    assert marks.right, marks.said


def test_a_swinging_scale_locates_no_step(tmp_path):
    swings = Answer(recipe="scaler-oscillation", step=300, phase=(), operators=())
    record(swings, tmp_path / "run")
    result = bisect_run(tmp_path / "run", what_if=False)
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert "loss-scale-oscillation" in result.reason
    assert result.first_bad_step is None
