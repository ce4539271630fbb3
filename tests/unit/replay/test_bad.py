"""The ``--bad`` predicates, on whole logs and on single rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import UsageError
from forensics.replay.bad import parse_bad
from forensics.runlog.steps import StepTable

NAN, INF = math.nan, math.inf


def log(**columns: object) -> StepTable:
    return StepTable.from_arrays(columns)


def first(text: str, table: StepTable) -> int | None:
    bad = np.flatnonzero(parse_bad(text).rows(table))
    return int(bad[0]) if len(bad) else None


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("loss>10", 3),
        ("loss >= 10", 2),
        ("loss<2", 0),
        ("loss=10", 2),
        ("loss!=1", 1),
        ("loss==nan", 4),
        ("loss==inf", None),
        ("nonfinite", 3),
        ("skipped", 4),
        ("scale<1", 5),
        ("norm>1e2", 3),
        ("grad_l2_pre_clip>100", 3),
        ("norm==inf", 3),
    ],
)
def test_the_first_matching_row(text: str, row: int | None) -> None:
    table = log(
        loss=[1.0, 2.0, 10.0, 11.0, NAN, 1.0],
        grad_l2_pre_clip=[1.0, 1.0, 1.0, INF, None, 1.0],
        skipped=[False, False, False, False, True, False],
        scaler_scale=[2.0, 2.0, 2.0, 2.0, 1.0, 0.5],
    )
    assert first(text, table) == row


def test_a_nan_passes_every_limit_but_equals_nothing() -> None:
    table = log(loss=[1.0, NAN])
    assert [first(f"loss{sign}5", table) for sign in (">", ">=")] == [1, 1]
    assert first("loss<0", table) == 1
    assert first("loss==5", table) is None


def test_what_was_not_written_is_never_bad() -> None:
    table = log(loss=[1.0, 1.0], grad_l2_pre_clip=[None, None])
    assert first("norm>0", table) is None
    assert first("nonfinite", table) is None
    assert not parse_bad("norm<100").holds({"grad_l2_pre_clip": None})
    assert not parse_bad("nonfinite").holds({"loss": None, "lr": 1.0})


def test_clocks_and_validation_are_no_part_of_the_training() -> None:
    table = log(loss=[1.0], val_loss=[NAN], tokens_per_s=[INF])
    assert first("nonfinite", table) is None
    assert first("val_loss==nan", table) == 0


def test_every_learning_rate_counts() -> None:
    assert first("nonfinite", log(loss=[1.0, 1.0], lr_1=[0.1, NAN])) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loss", "something to be compared with"),
        ("loss>", "is no condition"),
        ("loss>ten", "'ten' is no number"),
        ("loss>nan", "write 'loss==nan'"),
        (">5", "is no condition"),
        ("", "is no condition"),
        ("rm -rf /", "is no condition"),
        ("__import__('os')", "is no condition"),
    ],
)
def test_nonsense_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bad(text)
    assert said in caught.value.line()
    assert "\n" not in caught.value.line()


def test_a_column_the_log_lacks_is_named_with_those_it_has() -> None:
    table = log(loss=[1.0], lr=[0.1])
    with pytest.raises(UsageError, match=r"no column 'perplexity'.*loss"):
        parse_bad("perplexity>3").rows(table)


def test_a_column_of_texts_is_refused() -> None:
    table = log(loss=[1.0], skip_reason=["nonfinite_grad"])
    with pytest.raises(UsageError, match="holds texts"):
        parse_bad("skip_reason>3").rows(table)


cells = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1.0, 5.0]))


@settings(deadline=None, max_examples=60)
@given(
    losses=st.lists(cells, min_size=1, max_size=8),
    text=st.sampled_from(["loss>5", "loss<=1", "loss==nan", "loss!=1", "nonfinite", "loss!=nan"]),
)
def test_a_row_is_judged_alike_in_the_log_and_in_a_replay(
    losses: list[float | None], text: str
) -> None:
    predicate = parse_bad(text)
    table = log(loss=losses)
    alone = [predicate.holds({"loss": loss}) for loss in losses]
    assert predicate.rows(table).tolist() == alone


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "finite"),
        ("loss > 1e1", "loss at most 1e1"),
        ("norm>=100", "norm below 100"),
        ("scale<1", "scale at least 1"),
        ("lr<=0", "lr above 0"),
        ("loss==nan", "loss other than nan"),
        ("skipped", "not skipped"),
    ],
)
def test_what_is_not_bad_has_words_of_its_own(asked: str | None, words: str) -> None:
    assert parse_bad(asked).otherwise == words
