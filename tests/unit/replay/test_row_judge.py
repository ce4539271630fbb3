"""Which replayed steps are bad, and which are the loss scaler at work."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forensics.record.step_log import SkipLog, StepLog
from forensics.replay.bad import parse_bad
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge

JUDGE = RowJudge(parse_bad(None))


def skipped(*bad: str, scale: float = 1024.0, step: int = 3, **cells: Any) -> ReplayedStep:
    log = SkipLog(
        step=step,
        lrs=(0.1,),
        **{"loss": 1.0, "skip_reason": "nonfinite_grad", **cells},
        scaler_scale=scale,
    )
    return ReplayedStep(step=step, log=log, bad=bad)


def taken(*bad: str, loss: float = 1.0) -> ReplayedStep:
    log = StepLog(step=3, lrs=(0.1,), grad_l2_pre_clip=1.0, grad_l2_post_clip=None, loss=loss)
    return ReplayedStep(step=3, log=log, bad=bad)


def test_a_sound_step_is_not_bad() -> None:
    assert not JUDGE(taken())


@pytest.mark.parametrize("bad", ["loss", "norm", "grad:w", "param:w", "buffer:b", "lr", "scale"])
def test_whatever_is_not_finite_in_a_step_that_was_taken_is_bad(bad: str) -> None:
    assert JUDGE(taken(bad))


def test_an_overflow_that_the_scaler_skips_is_routine() -> None:
    assert not JUDGE(skipped("grad:w", "norm"))


@pytest.mark.parametrize(
    "step",
    [
        skipped("grad:w", "norm", scale=1.0),
        skipped("loss", "norm"),
        skipped("grad:w", "buffer:b"),
        skipped("norm", norm_overflow=True),
        skipped("norm", scale=math.inf),
    ],
)
def test_what_no_scaler_does_is_bad_though_skipped(step: ReplayedStep) -> None:
    assert JUDGE(step)


def test_where_the_log_says_more_an_overflow_is_the_fault() -> None:
    strict = RowJudge(parse_bad(None), frozenset({3, 9}))
    assert strict(skipped("grad:w"))
    assert not strict(skipped("grad:w", step=4))
    assert not strict.only_at(9)(skipped("grad:w", step=3))


def test_an_exception_is_bad_whatever_was_asked_for() -> None:
    raised = ReplayedStep(step=1, log=None, exception="ValueError: no", bad=("exception",))
    assert JUDGE(raised)
    assert RowJudge(parse_bad("loss>10"))(raised)


def test_a_condition_looks_at_the_row_alone() -> None:
    judge = RowJudge(parse_bad("loss>10"))
    assert judge(taken(loss=11.0))
    assert not judge(taken("param:w", loss=9.0))
    assert not judge.by_state
    assert JUDGE.by_state
