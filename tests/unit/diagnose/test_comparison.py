"""Two runs side by side: the same or not, where they part, and what that means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.comparison import Comparison, Likeness, compare
from forensics.errors import InputError
from forensics.runlog.manifest import Manifest, ParameterInfo, ScalerPolicy
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

ROWS = 400


def columns(seed: int = 0, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    norm = np.exp(0.3 * rng.normal(size=ROWS))
    return {
        "step": np.arange(ROWS),
        "lr": np.full(ROWS, 1e-3),
        "grad_l2_pre_clip": norm,
        "grad_l2_post_clip": np.minimum(norm, 1.0),
        "loss": 2 + np.exp(-np.arange(ROWS) / 80) + 0.05 * rng.normal(size=ROWS),
        "skipped": np.zeros(ROWS),
        "scaler_scale": np.ones(ROWS),
        "time_s": np.arange(ROWS) * rng.random(),
        **changes,
    }


def run(table: dict[str, Any], name: str = "a", manifest: Manifest | None = None) -> Run:
    return Run(Path(name), StepTable.from_arrays(table), manifest)


def parted(comparison: Comparison) -> dict[str, int | None]:
    return {c.name: c.first for c in comparison.columns if c.first is not None}


def test_the_same_rows_are_the_same_run_whatever_the_clock_says() -> None:
    comparison = compare(run(columns()), run(columns(time_s=np.zeros(ROWS)), "b"))
    assert comparison.likeness is Likeness.IDENTICAL
    assert comparison.alike
    assert "time_s" not in {column.name for column in comparison.columns}
    assert not comparison.changes


def test_nan_is_equal_to_nan_and_absent_to_absent_but_not_to_each_other() -> None:
    loss = columns()["loss"]
    loss[100] = np.nan
    present = np.ones(ROWS, bool)
    present[100] = False
    nan = StepTable.from_arrays(columns(loss=loss))
    absent = StepTable.from_arrays(columns(loss=loss), {"loss": present})
    assert compare(Run(Path("a"), nan), Run(Path("b"), nan)).alike
    assert compare(Run(Path("a"), absent), Run(Path("b"), absent)).alike
    comparison = compare(Run(Path("a"), nan), Run(Path("b"), absent), rtol=10.0)
    assert parted(comparison) == {"loss": 100}
    (loss_column,) = [c for c in comparison.columns if c.name == "loss"]
    assert (loss_column.a, loss_column.b) == ("nan", "absent")
    assert loss_column.largest == np.inf
    assert not comparison.alike


def test_the_last_bit_counts_unless_a_tolerance_is_given() -> None:
    other = columns()
    other["loss"][250] = np.nextafter(other["loss"][250], 9)
    exact = compare(run(columns()), run(other, "b"))
    assert exact.likeness is Likeness.DIFFERENT
    assert parted(exact) == {"loss": 250}
    assert "step 250" in exact.reason
    loose = compare(run(columns()), run(other, "b"), rtol=1e-9)
    assert loose.likeness is Likeness.WITHIN_TOLERANCE
    assert loose.alike


def test_each_column_is_dated_exactly_beyond_the_tolerance_and_where_it_matters() -> None:
    other = columns()
    other["loss"] = other["loss"] * (1 + 1e-9 * np.exp(np.arange(ROWS) / 15))
    comparison = compare(run(columns()), run(other, "b"), rtol=1e-5)
    (loss,) = [c for c in comparison.columns if c.name == "loss"]
    assert loss.first == 0
    assert loss.beyond == int(np.ceil(15 * np.log(1e4)))
    assert loss.noticeable == int(np.ceil(15 * np.log(1e7)))


@pytest.mark.parametrize(
    ("changed", "meaning"),
    [
        (("lr", "loss"), "schedule"),
        (("loss", "grad_l2_pre_clip"), "batch"),
        (("grad_l2_pre_clip",), "backward"),
        (("grad_l2_post_clip",), "threshold"),
        (("scaler_scale",), "scaler"),
    ],
)
def test_the_column_that_parts_first_says_what_is_not_the_same(
    changed: tuple[str, ...], meaning: str
) -> None:
    other = columns()
    for name in changed:
        other[name] = np.where(np.arange(ROWS) >= 120, other[name] * 1.5, other[name])
    comparison = compare(run(columns()), run(other, "b"))
    assert meaning in comparison.reason
    assert "step 120" in comparison.reason


def test_digests_are_compared_as_texts() -> None:
    texts = [f"{i:016x}" for i in range(ROWS)]
    other = [*texts[:77], *(f"x{text}" for text in texts[77:])]
    comparison = compare(
        run(columns(param_digest=texts)), run(columns(param_digest=other), "b"), rtol=1.0
    )
    assert parted(comparison) == {"param_digest": 77}
    assert "weights" in comparison.reason


def test_a_longer_run_is_alike_as_far_as_both_go_but_a_hole_is_not() -> None:
    short = {name: values[:300] for name, values in columns().items()}
    comparison = compare(run(short), run(columns(), "b"))
    assert comparison.alike
    assert (comparison.common, comparison.longer_a, comparison.longer_b) == (300, 0, 100)
    kept = (np.arange(ROWS) < 100) | (np.arange(ROWS) >= 150)
    holed = {name: np.asarray(values)[kept] for name, values in columns().items()}
    comparison = compare(run(columns()), run(holed, "b"))
    assert not comparison.alike
    assert (comparison.only_a, comparison.only_b) == (50, 0)
    assert "50 steps are in one of them only" in comparison.reason


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(InputError, match="no step in common"):
        compare(run(columns()), run(columns(step=np.arange(ROWS) + 5000), "b"))
    with pytest.raises(InputError, match="no column in common"):
        compare(run({"step": [0, 1], "loss": [1, 2]}), run({"step": [0, 1], "lr": [1, 2]}, "b"))


def test_two_seeds_of_one_config_have_not_changed() -> None:
    for seed in range(8):
        comparison = compare(run(columns(2 * seed)), run(columns(2 * seed + 1), "b"))
        assert not comparison.alike
        names = {change.name for change in comparison.changes}
        assert names == {"loss", "gradient norm", "clip rate", "skip rate"}
        assert not [change for change in comparison.changes if change.changed]


def test_what_changed_by_more_than_chance_is_named() -> None:
    other = columns(1)
    other["loss"] = other["loss"] * 1.1
    other["skipped"] = (np.arange(ROWS) % 5 == 0).astype(float)
    other["grad_l2_pre_clip"] = other["grad_l2_pre_clip"] * 3
    other["grad_l2_post_clip"] = np.minimum(other["grad_l2_pre_clip"], 1.0)
    other["loss"][390] = np.inf
    changes = {c.name: c for c in compare(run(columns()), run(other, "b")).changes}
    assert all(change.changed for change in changes.values())
    assert changes["loss"].difference == pytest.approx(0.1, abs=0.02)
    assert changes["skip rate"].difference == pytest.approx(0.2)
    assert changes["clip rate"].b > 0.9


def test_config_code_data_and_machine_are_compared_leaf_by_leaf() -> None:
    one = Manifest(
        optimizer={"name": "adamw", "lr": 1e-3},
        git={"commit": "aaa", "dirty": False},
        data_version="v1",
        threads=2,
        scaler=ScalerPolicy(True, 65536.0),
        parameters=(ParameterInfo("w", (2, 2)),),
    )
    other = replace(
        one,
        optimizer={"name": "adamw", "lr": 2e-3, "eps": 1e-6},
        git={"commit": "bbb", "dirty": False},
        data_version="v2",
        threads=4,
        scaler=ScalerPolicy(True, 1024.0),
        parameters=(ParameterInfo("w", (2, 2), "bfloat16"),),
    )
    comparison = compare(run(columns(), "a", one), run(columns(), "b", other))
    assert comparison.alike  # the rows decide; what is said about them is told
    found = {(d.group, d.key): (d.a, d.b) for d in comparison.differences}
    assert found[("config", "optimizer.lr")] == ("0.001", "0.002")
    assert found[("config", "optimizer.eps")] == ("", "1e-06")
    assert found[("config", "scaler.init_scale")] == ("65536.0", "1024.0")
    assert found[("code", "git.commit")] == ("aaa", "bbb")
    assert found[("data", "data_version")] == ("v1", "v2")
    assert found[("machine", "threads")] == ("2", "4")
    assert "bfloat16" in found[("model", "parameters.w")][1]
    assert len(found) == 7


def test_where_each_goes_bad_is_told() -> None:
    other = columns()
    other["loss"][200:] = np.nan
    comparison = compare(run(columns()), run(other, "b"))
    assert (comparison.bad_a, comparison.bad_b) == (None, 200)


def test_a_run_that_goes_nonfinite_heads_the_answer_and_is_a_change() -> None:
    other = columns(1)
    other["loss"][-len(other["loss"]) // 2 :] = np.nan
    comparison = compare(run(columns()), run(other, "b"))
    rows = comparison.common
    first = rows - (rows + 1) // 2
    head = f"B is non-finite in {rows - first:,} of {rows:,} steps, from {first:,} on, A in none; "
    assert comparison.reason.startswith(head)
    change = comparison.changes[0]
    assert (change.name, change.a, change.changed) == ("non-finite rate", 0.0, True)
    assert change.b == pytest.approx(0.5, abs=0.01)
    back = compare(run(other, "b"), run(columns()))
    assert back.reason.startswith("A is non-finite in ")
    assert ", B in none; " in back.reason


def test_both_nonfinite_alike_is_no_change() -> None:
    both = columns()
    both["loss"][200:] = np.nan
    other = {**both, "grad_l2_pre_clip": both["grad_l2_pre_clip"] * (1 + 1e-9)}
    comparison = compare(run(both), run(other, "b"))
    assert comparison.reason.startswith("they part at step")
    assert not [change.name for change in comparison.changes if change.changed]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**16), st.sampled_from([0.2, 0.9, 1.0, 1.5, 5.0]))
def test_the_difference_of_levels_is_that_of_the_two_values_shown(seed: int, times: float) -> None:
    rng = np.random.default_rng(seed)
    rows = {"loss": 2 + rng.normal(size=300), "grad_l2_pre_clip": rng.lognormal(size=300)}
    other = {
        "loss": times * (2 + rng.normal(size=300)),
        "grad_l2_pre_clip": rng.lognormal(size=300),
    }
    for change in compare(run(rows), run(other, "b")).changes:
        assert change.difference == pytest.approx((change.b - change.a) / abs(change.a))
        assert not change.changed or abs(change.difference) > change.noise


CELL = st.sampled_from([0.0, -0.0, 1.0, 1e300, -1e300, 5e-324, np.nan, np.inf, -np.inf])


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_any_two_logs_are_compared_alike_from_both_sides(data: st.DataObject) -> None:
    def log() -> dict[str, Any]:
        rows = data.draw(st.integers(1, 60))
        cells = st.lists(CELL, min_size=rows, max_size=rows)
        start = data.draw(st.integers(0, 3))
        names = ("loss", "grad_l2_pre_clip", "grad_l2_post_clip")
        return {"step": np.arange(start, start + rows), **{n: data.draw(cells) for n in names}}

    a, b = run(log()), run(log(), "b")
    if not set(a.steps.step.tolist()) & set(b.steps.step.tolist()):
        return
    there, back = compare(a, b), compare(b, a)
    assert there.likeness is back.likeness
    assert parted(there) == parted(back)
    assert compare(a, a).likeness is Likeness.IDENTICAL
    first = there.first_step
    assert all(c.first is None or first <= c.first <= there.last_step for c in there.columns)
