import math

import pytest
import torch

from forensics.record import tensor_norms
from forensics.record.tensor_norms import combine, largest_magnitudes, measure


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


def test_largest_magnitudes_are_exact_in_every_dtype_and_order_is_kept():
    tensors = [
        torch.tensor([3e38, -3.2e38]),
        torch.tensor([3.0 + 4.0j, 1.0j]),
        torch.tensor([[-7.0], [2.0]], dtype=torch.bfloat16),
        torch.tensor(-0.5, dtype=torch.float16),
        torch.tensor([2.0, 448.0]).to(torch.float8_e4m3fn),
        torch.tensor([-1e300, 2.0], dtype=torch.float64),
    ]
    found = [float(n) for n in largest_magnitudes(tensors)]
    assert found == [pytest.approx(3.2e38), 5.0, 7.0, 0.5, 448.0, 1e300]


def test_largest_magnitudes_show_what_is_not_finite():
    inf, nan = math.inf, math.nan
    tensors = [torch.tensor(v) for v in ([1.0, -inf], [inf, nan, 1.0], [1.0, nan])]
    found = [float(n) for n in largest_magnitudes(tensors)]
    assert found[0] == inf
    assert all(map(math.isnan, found[1:]))
    assert largest_magnitudes([]) == []


def test_the_whole_from_its_parts_neither_overflows_nor_hides_a_nan():
    assert combine([3e200, 4e200]) == pytest.approx(5e200)
    assert math.isnan(combine([math.inf, math.nan]))
    assert combine([math.inf, 1.0]) == math.inf
