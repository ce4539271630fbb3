"""One pass over a tensor: right for every dtype, layout and place of the bad element."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forensics.replay.health import tensor_scan
from forensics.replay.health.tensor_scan import looks_like_a_mask, scan_tensor

NAN, INF = float("nan"), float("inf")
FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_nan_is_found_in_every_dtype(dtype: torch.dtype) -> None:
    values = torch.ones(7)
    sound = scan_tensor(values.to(dtype))
    values[4] = NAN
    sick = scan_tensor(values.to(dtype))
    assert sound is not None
    assert sick is not None
    assert sound.finite
    assert (sick.nan, sick.inf, sick.numel, sick.first) == (1, 0, 7, (4,))


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS[:4], torch.float8_e5m2, torch.complex64], ids=str)
def test_an_infinity_is_found(dtype: torch.dtype, negative: bool) -> None:
    values = torch.ones(2, 3)
    values[1, 1] = -INF if negative else INF
    scan = scan_tensor(values.to(dtype))
    assert scan is not None
    assert (scan.nan, scan.inf, scan.first) == (0, 1, (1, 1))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_half_complex() -> None:
    scan = scan_tensor(torch.tensor([1j, complex(NAN, INF)]).to(torch.complex32))
    assert scan is not None
    assert (scan.nan, scan.inf, scan.first) == (1, 0, (1,))


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
)
def test_bounds_of_eight_bits_are_those_of_the_values(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    finite = codes[codes.float().isfinite()]
    scan = scan_tensor(finite)
    assert scan is not None
    assert (scan.smallest, scan.largest) == (finite.float().min(), finite.float().max())


@pytest.mark.parametrize("value", [torch.tensor([1, 2]), torch.tensor([True]), torch.empty(0, 3)])
def test_what_cannot_be_nonfinite_is_not_looked_at(value: Tensor) -> None:
    assert scan_tensor(value) is None
    assert scan_tensor(torch.empty(3, device="meta")) is None


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_counts_and_the_first_index_are_exact_whatever_the_layout(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    tensor = torch.arange(float(math.prod(shape))).reshape(shape)
    flat = tensor.view(-1)
    for index in data.draw(st.lists(st.integers(0, flat.numel() - 1), max_size=4)):
        flat[index] = data.draw(st.sampled_from([NAN, INF, -INF]))
    tensor = tensor.permute(data.draw(st.permutations(range(len(shape)))))
    if shape and data.draw(st.booleans()):
        tensor = tensor[..., ::2]
    if data.draw(st.booleans()):
        tensor = tensor.expand(3, *tensor.shape)
    scan = scan_tensor(tensor)
    bad = (~tensor.isfinite()).nonzero()
    assert scan is not None
    assert (scan.nan, scan.inf) == (tensor.isnan().sum(), tensor.isinf().sum())
    assert scan.first == (tuple(bad[0].tolist()) if len(bad) else ())
    if not len(bad):
        assert (scan.smallest, scan.largest) == (tensor.min(), tensor.max())


def test_large_tensors_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("PIECE", 10), ("_COPIED", 6), ("_COUNTED", 4)):
        monkeypatch.setattr(tensor_scan, name, size)
    tensor = torch.ones(7, 5, 3)
    tensor[5, 3, 1] = NAN
    tensor[6, 0, 0] = -INF
    for layout in (tensor, tensor.transpose(0, 2), tensor[:, ::2]):
        scan = scan_tensor(layout)
        bad = (~layout.isfinite()).nonzero()
        assert scan is not None
        assert (scan.nan, scan.inf) == (layout.isnan().sum(), layout.isinf().sum())
        assert scan.first == (tuple(bad[0].tolist()) if len(bad) else ())


def test_a_sum_that_would_overflow_is_no_infinity() -> None:
    scan = scan_tensor(torch.full((100,), 60000.0, dtype=torch.float16))
    assert scan is not None
    assert scan.finite
    assert scan.absmax == 60000.0


def test_masks() -> None:
    causal = torch.full((4, 4), -INF).triu(1)
    assert looks_like_a_mask(causal)
    assert not looks_like_a_mask(causal + 1)
    assert not looks_like_a_mask(-causal)
    assert not looks_like_a_mask(torch.full((4, 4), -INF))
    assert not looks_like_a_mask(torch.tensor([0.0, -INF]))  # a bias that went bad looks like that
