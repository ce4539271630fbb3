"""Dispatched operators: names, lanes, what is written, deliberate infinities."""

from __future__ import annotations

import math
from typing import Any

import torch

from forensics.replay.tracing.operator_call import OperatorCall, storage_key

aten = torch.ops.aten


def call(func: Any, *args: Any, held: tuple[int, ...] = (), **kwargs: Any) -> OperatorCall:
    return OperatorCall(func, args, kwargs, held)


def test_names_are_told_without_overload_and_trailing_underscore():
    x = torch.ones(2)
    assert call(aten.add_.Tensor, x, x).name == "aten.add"
    assert call(aten._softmax.default, x, -1, False).bare_name == "softmax"
    assert call(aten.empty.memory_format, [2]).allocates


def test_an_ordinary_operator_has_one_lane():
    x, y = torch.ones(2), torch.ones(2)
    (lane,) = call(aten.add_.Tensor, x, y).lanes()
    assert len(lane.inputs) == 2
    assert [id(t) for t in lane.written] == [id(x)]


def test_a_foreach_operator_has_a_lane_a_tensor():
    a, b, c, d = (torch.ones(2) for _ in range(4))
    lanes = call(aten._foreach_add_.List, [a, b], [c, d]).lanes()
    assert [[id(t) for t in lane.inputs] for lane in lanes] == [[id(a), id(c)], [id(b), id(d)]]
    assert [[id(t) for t in lane.written] for lane in lanes] == [[id(a)], [id(b)]]
    made = call(aten._foreach_mul.Scalar, [a, b], 2.0)
    out = made.func(*made.args)
    assert [
        lane.inputs[0] is t
        for (_, lane), t in zip(made.results(out, made.lanes()), (a, b), strict=True)
    ]


def test_what_every_lane_shares_is_in_each():
    grads, found, scale = [torch.ones(2), torch.ones(3)], torch.zeros(1), torch.ones(1)
    func = aten._amp_foreach_non_finite_check_and_unscale_.default
    lanes = call(func, grads, found, scale).lanes()
    assert [len(lane.inputs) for lane in lanes] == [3, 3]
    assert all(any(t is found for t in lane.written) for lane in lanes)


def test_an_argument_that_is_held_counts_as_written():
    x, mean = torch.ones(2, 3), torch.zeros(3)
    args = (x, None, None, mean, torch.ones(3), True, 0.1, 1e-5)
    (lane,) = call(aten.native_batch_norm.default, *args, held=(storage_key(mean),)).lanes()
    assert [t is mean for t in lane.written] == [True]


def test_an_infinity_is_deliberate_only_where_an_operator_puts_a_number():
    x, mask = torch.ones(2), torch.ones(2, dtype=torch.bool)
    assert call(aten.masked_fill.Scalar, x, mask, -math.inf).asks_for_infinity()
    assert not call(aten.masked_fill.Scalar, x, mask, -1e9).asks_for_infinity()
    assert not call(aten.mul.Scalar, x, math.inf).asks_for_infinity()


def test_plain_numbers_are_told():
    x = torch.ones(2)
    assert call(aten.pow.Tensor_Scalar, x, 2).numbers() == (2.0,)
    assert math.isnan(call(aten.add.Tensor, x, x, alpha=math.nan).bad_number() or 0)
    assert call(aten.add.Tensor, x, x, alpha=0.5).bad_number() is None
