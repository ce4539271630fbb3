"""The diagnosis on the labelled corpus: a part of it that takes a few seconds.

``python -m tests.corpus.score`` judges all of it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.corpus.case import Expect, Label, fault
from tests.corpus.score import score, table
from tests.corpus.scoring import Score, corpora, judge, make

SEED = 100
"""The first of the test seeds."""


@cache
def result() -> Score:
    """Every case at one seed."""
    return score([SEED])


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    healthy, faulty = corpora()
    assert len(healthy.makers) >= 60
    assert len(faulty.makers) >= 180
    assert not set(healthy.makers) & set(faulty.makers)


def test_no_healthy_log_raises_an_alarm() -> None:
    assert {j.name: j.problems for j in result().of(False) if j.alarms or not j.status} == {}


def test_no_rule_crashes() -> None:
    assert {j.name: j.failed for j in result().judged if j.failed} == {}


def test_planted_faults_are_found_where_they_are() -> None:
    assert result().found >= 0.98, table(result())


def test_the_verdict_names_the_planted_root() -> None:
    assert result().share("status") >= 0.98
    assert result().share("step") >= 0.95


def test_a_seed_makes_the_same_log_again() -> None:
    once, again = make("fp16-sawtooth-t3", 7).run.steps, make("fp16-sawtooth-t3", 7).run.steps
    other = make("fp16-sawtooth-t3", 8).run.steps
    assert np.array_equal(once["loss"], again["loss"])
    assert not np.array_equal(once["loss"][:100], other["loss"][:100])


class TestJudging:
    """The judge itself: it must be able to say no."""

    def test_a_silent_diagnosis_fails_a_faulty_label(self) -> None:
        case = make("nan-batch-guarded", SEED)
        wrong = fault("nonfinite-loss", case.label.roots[0].step + 50)  # type: ignore[operator]
        judged = judge(type(case)(case.name, case.seed, case.run, wrong))
        assert judged.rules == (("nonfinite-loss", "wrong-step"),)
        assert judged.root
        assert not judged.step

    def test_a_finding_that_no_label_allows_is_an_alarm(self) -> None:
        case = make("nan-batch-guarded", SEED)
        judged = judge(type(case)(case.name, case.seed, case.run, Label()))
        assert judged.alarms == ("nonfinite-loss",)
        assert not judged.status

    def test_a_rule_that_never_fires_is_missed(self) -> None:
        case = make("fp32", SEED)
        label = Label(must=(Expect("nonfinite-loss", 5),), status=("faulty",))
        judged = judge(type(case)(case.name, case.seed, case.run, label))
        assert judged.rules == (("nonfinite-loss", "missed"),)

    @pytest.mark.parametrize(
        ("step", "right"), [(97, False), (98, True), (112, True), (113, False)]
    )
    def test_steps_are_right_within_the_slack(self, step: int, right: bool) -> None:
        assert Expect("x", 100, slack=2, upto=110).at(step) is right
