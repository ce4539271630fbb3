import math

import pytest
import torch

from forensics.record import tensor_norms
from forensics.record.tensor_norms import combine, l2_norms, measure


def test_order_is_kept_across_dtypes_and_what_is_alongside_comes_along():
    tensors = [torch.tensor([3.0, 4.0], dtype=d) for d in (torch.float64, torch.bfloat16)]
    tensors.insert(1, torch.tensor([5.0, 12.0]))
    found = measure(tensors, [torch.tensor(7.0), torch.tensor(8, dtype=torch.int64)])
    assert found.l2 == (5.0, 13.0, 5.0)
    assert found.alongside == (7.0, 8.0)
    assert found.nonfinite == (0, 0, 0)


def test_a_closer_look_goes_piece_by_piece(monkeypatch):
    monkeypatch.setattr(tensor_norms, "_PIECE", 3)
    overflowing = torch.full((2, 5), 1e20)
    poisoned = torch.tensor([1.0, math.nan, 1.0, 1.0, math.inf, 1.0, -math.inf])
    found = measure([overflowing, poisoned])
    assert found.overflowed == (True, False)
    assert found.l2[0] == pytest.approx(math.sqrt(10) * 1e20, rel=1e-7)
    assert found.nonfinite == (0, 3)


def test_nothing_to_measure_is_nothing():
    found = measure([])
    assert (found.l2, found.alongside) == ((), ())
    assert combine(()) == 0.0


def test_infinity_norms_never_overflow():
    assert [float(n) for n in l2_norms([torch.tensor([3e38, -3.2e38])], math.inf)] == [
        pytest.approx(3.2e38)
    ]


def test_the_whole_from_its_parts_neither_overflows_nor_hides_a_nan():
    assert combine([3e200, 4e200]) == pytest.approx(5e200)
    assert math.isnan(combine([math.inf, math.nan]))
    assert combine([math.inf, 1.0]) == math.inf
