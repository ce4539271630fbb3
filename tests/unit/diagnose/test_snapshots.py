"""Pure functions on snapshots: own baselines, like layers, weight matrices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.snapshots import (
    column_medians,
    earliest_start,
    families,
    is_matrix,
    layer_of,
    longest_runs,
    own_baselines,
    squared_shares,
    trainable_mask,
    usable,
)
from forensics.runlog.manifest import ParameterInfo
from forensics.runlog.params import ParamMatrix


def grid(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)


def test_medians_are_of_the_finite_values() -> None:
    values = grid([[1, np.nan, np.inf], [3, np.nan, 5], [np.nan, np.nan, 7], [2, np.nan, 9]])
    np.testing.assert_array_equal(column_medians(values), [2, np.nan, 7])
    assert column_medians(values).dtype == np.float32


def test_a_baseline_is_the_median_of_at_least_half_of_the_past() -> None:
    values = np.ones((100, 2), dtype=np.float32)
    values[50:, 1] = 10
    baselines = own_baselines(values)
    assert np.isnan(baselines[:8]).all()
    np.testing.assert_array_equal(baselines[8:, 0], 1)
    np.testing.assert_array_equal(baselines[8:, 1], 1)  # first 64 of 99: 50 ones, 14 tens


def test_a_baseline_does_not_change_when_snapshots_are_appended() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=(200, 3))).astype(np.float32)
    np.testing.assert_array_equal(own_baselines(values)[:70], own_baselines(values[:70]))


def test_a_baseline_needs_values_to_go_by() -> None:
    values = np.full((20, 2), np.nan, dtype=np.float32)
    values[:3, 0], values[:4, 1] = 5, 5
    baselines = own_baselines(values)
    assert np.isnan(baselines[10, 0])
    assert baselines[10, 1] == 5


def test_the_longest_run_of_each_column() -> None:
    mask = np.array([[1, 0], [1, 0], [0, 0], [1, 0], [1, 0], [1, 0], [0, 0]], dtype=bool)
    first, last = longest_runs(mask)
    assert (first[0], last[0]) == (3, 5)
    assert last[1] == first[1] - 1


def test_shares_sum_to_one_without_overflow() -> None:
    shares = squared_shares(grid([[3e38, 3e38, np.nan], [3, 4, 0], [0, 0, 0]]))
    np.testing.assert_allclose(shares[0, :2], 0.5)
    assert np.isnan(shares[0, 2])
    np.testing.assert_allclose(shares[1], [9 / 25, 16 / 25, 0], rtol=1e-6)
    np.testing.assert_array_equal(shares[2], 0)


@pytest.mark.parametrize(
    ("name", "shape", "matrix"),
    [
        ("blocks.0.fc.weight", (), True),
        ("conv.kernel", (), True),
        ("blocks.0.fc.bias", (), False),
        ("blocks.0.norm.weight", (), False),
        ("blocks.0.ln_1.weight", (), False),
        ("bn1.weight", (), False),
        ("encoder.LayerNorm.weight", (), False),
        ("planner.weight", (), True),  # "ln" and "bn" only as words of their own
        ("logit_scale", (), False),
        ("fc.weight", (64, 64), True),
        ("fc.weight", (64,), False),
        ("fc.weight", (1, 64), False),
        ("pos_embed", (1, 196, 768), True),
    ],
)
def test_what_counts_as_a_weight_matrix(name: str, shape: tuple[int, ...], matrix: bool) -> None:
    info = {name: ParameterInfo(name, shape)} if shape else {}
    assert is_matrix(name, info) is matrix


def test_families_are_like_layers_of_one_shape_in_order_of_their_numbers() -> None:
    names = [f"blocks.{i}.mlp.{j}.weight" for i in (10, 2, 0) for j in (0, 2)]
    names += ["blocks.5.mlp.0.weight", "head.weight"]
    shapes = dict.fromkeys(names, (8, 8)) | {"blocks.5.mlp.0.weight": (16, 8)}
    found = {family.template: family for family in families(names, shapes, 3)}
    assert set(found) == {"blocks.*.mlp.0.weight", "blocks.*.mlp.2.weight"}
    family = found["blocks.*.mlp.0.weight"]
    assert family.layers.tolist() == [0, 2, 10]
    assert [names[c] for c in family.columns] == [f"blocks.{i}.mlp.0.weight" for i in (0, 2, 10)]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blocks.11.attn.q.weight", "blocks.11"),
        ("model.layers.3.mlp.0.weight", "model.layers.3"),
        ("layer1.0.conv1.weight", "layer1"),
        ("lstm.weight_ih_l0", "lstm"),
        ("head.bias", "head"),
        ("temperature", "temperature"),
    ],
)
def test_the_layer_a_parameter_belongs_to(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_what_is_not_known_to_be_frozen_is_trainable() -> None:
    info = {"a": ParameterInfo("a", requires_grad=False), "b": ParameterInfo("b")}
    assert trainable_mask(("a", "b", "c"), info).tolist() == [False, True, True]


def test_only_finite_written_values_are_usable() -> None:
    values, present = grid([[1, np.inf, 3]]), np.array([[True, True, False]])
    matrix = ParamMatrix(np.array([0]), ("a", "b", "c"), values, present)
    np.testing.assert_array_equal(usable(matrix), grid([[1, np.nan, np.nan]]))


CELL = st.sampled_from([0.0, 1.0, -1.0, 3e38, 1e-45, np.nan, np.inf, -np.inf])


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_matrix_is_taken(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 4))
    cells = data.draw(st.lists(CELL, min_size=rows * columns, max_size=rows * columns))
    values = np.array(cells, dtype=np.float32).reshape(rows, columns)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_baselines(values).shape == squared_shares(values).shape == (rows, columns)
        assert column_medians(values).shape == (columns,)
        first, last = longest_runs(values > 0)
    assert ((last - first + 1 >= 0) & (first >= 0)).all()


@pytest.mark.parametrize(
    ("steps", "at", "in_update", "earliest"),
    [
        ([0, 10, 20], 2, False, 11),
        ([0, 10, 20], 2, True, 10),
        ([0, 10, 11], 2, False, None),
        ([0, 10, 11], 2, True, None),
        ([30, 40], 0, False, None),
    ],
)
def test_a_start_lies_between_two_snapshots(
    steps: list[int], at: int, in_update: bool, earliest: int | None
) -> None:
    assert earliest_start(np.array(steps), at, in_update=in_update) == earliest
