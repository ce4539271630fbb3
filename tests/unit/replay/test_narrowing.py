"""The log as the first index: the suspect step, and what is no suspicion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from forensics.errors import UsageError
from forensics.replay.bad import parse_bad
from forensics.replay.narrowing import Suspicion, narrow
from forensics.runlog.manifest import Ended, Manifest, ScalerPolicy, Segment
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

NAN, INF = math.nan, math.inf


def run(columns: dict[str, list[Any]], **manifest: Any) -> Run:
    known = Manifest(**manifest) if manifest else None
    return Run(path=Path("runs/x"), steps=StepTable.from_arrays(columns), manifest=known)


def plain(rows: int = 40, **changes: dict[int, Any]) -> dict[str, list[Any]]:
    """A calm log with some cells changed, by column and row."""
    columns: dict[str, list[Any]] = {
        "step": list(range(rows)),
        "lr": [0.01] * rows,
        "grad_l2_pre_clip": [1.0 + 0.01 * (i % 7) for i in range(rows)],
        "loss": [2.0 - 0.01 * i + 0.005 * (i % 5) for i in range(rows)],
        "skipped": [False] * rows,
        "scaler_scale": [1.0] * rows,
    }
    for name, cells in changes.items():
        for row, value in cells.items():
            columns.setdefault(name, [None] * rows)[row] = value
    return columns


def suspect(columns: dict[str, list[Any]], bad: str | None = None, **options: Any) -> Suspicion:
    return narrow(run(columns), parse_bad(bad), **options)


@pytest.mark.parametrize(
    ("changes", "step", "why"),
    [
        ({"loss": {20: NAN, 21: NAN}}, 20, "loss is NaN"),
        ({"grad_l2_pre_clip": {7: INF}}, 7, "gradient norm is inf"),
        ({"lr": {30: NAN}}, 30, "lr is NaN"),
        ({"scaler_scale": {9: 0.0}}, 9, "scaler_scale is 0"),
        ({"param_l2": {11: NAN}}, 11, "param_l2 is NaN"),
        (
            {"grad_l2_pre_clip": {5: 1e19}, "norm_overflow": {5: True}},
            5,
            "every gradient is finite",
        ),
    ],
)
def test_the_first_bad_row(changes: dict[str, dict[int, Any]], step: int, why: str) -> None:
    found = suspect(plain(**changes))
    assert found.step == step
    assert why in found.why
    assert step in found.strict


def test_a_calm_log_raises_no_suspicion() -> None:
    found = suspect(plain())
    assert found.step is None
    assert found.rows == 40
    assert found.unlogged is None


def scaled(rows: int, skips: dict[int, float]) -> dict[str, list[Any]]:
    """An fp16 log whose scale halves at each skip."""
    columns = plain(rows)
    scale = 65536.0
    for row in range(rows):
        columns["scaler_scale"][row] = scale
        if row in skips:
            columns["skipped"][row] = True
            columns["grad_l2_pre_clip"][row] = skips[row]
            scale /= 2
    return columns


def test_the_calibration_of_a_scaler_is_routine() -> None:
    found = narrow(
        run(
            scaled(60, {0: INF, 1: NAN, 2: INF}),
            precision="fp16",
            scaler=ScalerPolicy(enabled=True, init_scale=65536.0),
        ),
        parse_bad(None),
    )
    assert found.step is None
    assert found.routine == 3
    assert found.audits[:1] == (0,)  # the first skip shows what a loop does around its scaler


def test_a_skip_with_a_bad_loss_is_no_routine() -> None:
    columns = scaled(60, {0: INF, 30: NAN})
    columns["loss"][30] = NAN
    found = narrow(
        run(columns, precision="fp16", scaler=ScalerPolicy(enabled=True, init_scale=65536.0)),
        parse_bad(None),
    )
    assert found.step == 30
    assert 0 not in found.strict


def test_skips_after_a_scale_that_jumped_are_bad() -> None:
    columns = scaled(40, {})
    columns["scaler_scale"] = [256.0] * 20 + [65536.0, 32768.0] + [16384.0] * 18
    for row in (20, 21):
        columns["skipped"][row] = True
        columns["grad_l2_pre_clip"][row] = INF
    policy = ScalerPolicy(enabled=True, init_scale=256.0)
    found = narrow(run(columns, precision="fp16", scaler=policy), parse_bad(None))
    assert found.step == 20


def test_a_training_that_raised_is_bad_where_it_raised() -> None:
    ended = Ended(how="exception", step=40, message="ValueError: no")
    found = narrow(run(plain(40), ended=ended), parse_bad(None))
    assert (found.step, found.raised) == (40, True)
    assert "ValueError: no" in found.why


def test_a_bad_row_before_the_exception_comes_first() -> None:
    ended = Ended(how="exception", step=40, message="ValueError: no")
    found = narrow(run(plain(loss={30: NAN}), ended=ended), parse_bad(None))
    assert (found.step, found.raised) == (30, False)


def test_from_and_until_bound_what_is_looked_at() -> None:
    columns = plain(loss={10: NAN, 30: NAN})
    assert suspect(columns, from_step=11).step == 30
    assert suspect(columns, until_step=9).step is None
    assert suspect(columns, from_step=11, until_step=29).rows == 19


def test_a_condition_is_answered_by_its_first_row() -> None:
    found = suspect(plain(loss={12: 50.0, 13: 60.0}), "loss>10")
    assert (found.step, found.why) == (12, "loss is 50")
    assert suspect(plain(), "loss>10").step is None
    with pytest.raises(UsageError, match="no column 'perplexity'"):
        suspect(plain(), "perplexity>10")


def test_steps_without_a_row_are_known() -> None:
    columns = plain(40)
    kept = [i for i in range(40) if i not in (17, 18)]
    gappy = {name: [values[i] for i in kept] for name, values in columns.items()}
    assert suspect(gappy, "loss>10").unlogged == 17
    assert suspect(plain(40), "loss>10").unlogged is None
    assert suspect(plain(40), "loss>10", until_step=50).unlogged == 40


def test_a_growth_has_its_root_before_the_overflow() -> None:
    columns = plain(120)
    for row in range(40, 100):
        columns["grad_l2_pre_clip"][row] = 1.5 ** (row - 40)
        columns["loss"][row] = 2.0 * 1.4 ** (row - 40)
    for row in range(100, 120):
        columns["loss"][row] = columns["grad_l2_pre_clip"][row] = NAN
    found = suspect(columns)
    assert found.step == 100
    assert found.root_step is not None
    assert 35 <= found.root_step <= 60


def test_a_resume_is_worth_a_look() -> None:
    parts = (Segment(0), Segment(25, reason="resume"))
    found = narrow(run(plain(), segments=parts), parse_bad(None))
    assert 25 in found.audits


def test_what_an_earlier_bisection_said_is_no_evidence() -> None:
    stored = {"format_version": 1, "bisection": {"status": "located", "first_bad_step": 3}}
    clean = run(plain())
    known = Run(path=clean.path, steps=clean.steps, bisection=stored)
    assert narrow(known, parse_bad(None)) == narrow(clean, parse_bad(None))


def test_the_rate_of_a_later_group_is_looked_at() -> None:
    found = suspect(plain(lr_1={row: NAN if row >= 25 else 0.01 for row in range(40)}))
    assert (found.step, found.why) == (25, "lr_1 is NaN")


def test_a_recorded_exception_is_told_in_one_short_line() -> None:
    ended = Ended(how="exception", step=40, message="ValueError: " + "1.0,\n" * 900)
    found = narrow(run(plain(), ended=ended), parse_bad(None))
    assert found.step == 40
    assert len(found.why) < 280
    assert "\n" not in found.why
