import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from forensics.record.clipping import (
    clip_global_l2_norm,
    first_non_finite_grad,
    grad_norms,
    has_non_finite_grad,
)


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(values), dtype=dtype))
    made.grad = torch.tensor(values, dtype=dtype)
    return made


def network(*values: tuple[float, ...]) -> list[tuple[str, nn.Parameter]]:
    return [(f"layer{i}", parameter(*entry)) for i, entry in enumerate(values)]


def test_norms_are_the_true_ones():
    found = grad_norms(network((3.0, 4.0), (12.0,)))
    assert found.l2 == (5.0, 12.0)
    assert found.total == 13.0
    assert not found.overflowed
    assert not has_non_finite_grad(found)


def test_clipping_agrees_with_torch():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        a.grad = torch.randn_like(a) * 3
        b.grad = a.grad.clone()
    before = float(nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))
    pre, post = clip_global_l2_norm(ours.parameters(), 0.5)
    assert pre == pytest.approx(before, rel=1e-6)
    assert post == pytest.approx(0.5, rel=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert grad_norms(ours.named_parameters()).total == pytest.approx(post, rel=1e-6)


@pytest.mark.parametrize("max_norm", [13.5, None])
def test_norms_are_equal_where_nothing_is_clipped(max_norm):
    named = network((3.0, 4.0), (12.0,))
    assert clip_global_l2_norm((p for _, p in named), max_norm) == (13.0, 13.0)
    assert named[0][1].grad.tolist() == [3.0, 4.0]


def test_a_lone_parameter_is_taken_as_one():
    assert clip_global_l2_norm(parameter(3.0, 4.0), None).pre == 5.0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_non_finite_norm_clips_nothing(bad):
    named = network((3.0, bad), (12.0,))
    result = clip_global_l2_norm((p for _, p in named), 1.0)
    assert not math.isfinite(result.pre)
    assert named[1][1].grad.tolist() == [12.0]


def test_nan_wins_over_inf_in_the_global_norm():
    assert math.isnan(grad_norms(network((math.inf,), (math.nan,))).total)
    assert grad_norms(network((math.inf,), (1.0,))).total == math.inf


def test_elements_are_counted_where_the_norm_is_bad():
    found = grad_norms(network((1.0, math.nan, math.inf), (1.0,), (math.inf,)))
    assert found.nonfinite == {"layer0": 2, "layer2": 1}
    assert has_non_finite_grad(found)


class TestNormOverflow:
    def test_of_fp32_is_no_non_finite_gradient(self):
        named = network((1e20, 1e20), (1.0,))
        found = grad_norms(named)
        assert found.overflowed
        assert not has_non_finite_grad(found)
        assert found.total == pytest.approx(math.sqrt(2) * 1e20, rel=1e-6)

    def test_is_clipped_by_the_true_norm(self):
        named = network((1e20, 1e20), (1.0,))
        pre, post = clip_global_l2_norm(grad_norms(named), 1.0)
        assert pre == pytest.approx(math.sqrt(2) * 1e20, rel=1e-6)
        assert post == pytest.approx(1.0)
        assert named[0][1].grad.tolist() == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-5)

    def test_of_half_precision_does_not_happen(self):
        # torch's own norm of four fp16 elements of 40,000 is Inf.
        named = [("w", parameter(4e4, 4e4, 4e4, 4e4, dtype=torch.float16))]
        found = grad_norms(named)
        assert found.total == pytest.approx(8e4, rel=1e-3)
        assert not found.overflowed

    def test_of_float64_is_found_too(self):
        found = grad_norms([("w", parameter(1e200, 1e200, dtype=torch.float64))])
        assert found.overflowed
        assert found.total == pytest.approx(math.sqrt(2) * 1e200)

    def test_across_parameters_needs_no_second_look(self):
        found = grad_norms(network(*[(1.8e19,)] * 400))  # each norm fits, their squares do not
        assert found.total == pytest.approx(20 * 1.8e19, rel=1e-6)
        assert not found.overflowed


class TestAttribution:
    NAMED = network((1.0,), (math.nan,), (1.0,), (math.inf,))

    def test_follows_gradient_arrival(self):
        order = ["layer3", "layer2", "layer1", "layer0"]
        assert first_non_finite_grad(self.NAMED, order) == "layer3"
        assert first_non_finite_grad(self.NAMED, order[::-1]) == "layer1"

    def test_takes_the_last_in_network_order_where_arrival_is_unknown(self):
        assert first_non_finite_grad(self.NAMED) == "layer3"

    def test_puts_unknown_parameters_last(self):
        assert first_non_finite_grad(self.NAMED, ["layer0", "layer1"]) == "layer1"

    def test_is_none_where_all_is_finite(self):
        assert first_non_finite_grad(network((1.0,), (1e20, 1e20))) is None


class TestOddGradients:
    def test_missing_ones_are_left_out(self):
        named = [("frozen", nn.Parameter(torch.ones(3))), ("w", parameter(3.0, 4.0))]
        assert grad_norms(named).names == ("w",)
        assert clip_global_l2_norm((p for _, p in named), 1.0).pre == 5.0

    def test_none_at_all_is_norm_zero(self):
        assert grad_norms([("frozen", nn.Parameter(torch.ones(3)))]).total == 0.0
        assert clip_global_l2_norm([], 1.0) == (0.0, 0.0)

    def test_empty_ones_are_norm_zero(self):
        assert grad_norms([("empty", parameter())]).total == 0.0

    def test_sparse_ones_are_added_up_before_the_norm_and_clipped(self):
        table = nn.Embedding(6, 2, sparse=True)
        table(torch.tensor([1, 1, 4])).sum().backward()
        expected = float(table.weight.grad.to_dense().norm())
        pre, post = clip_global_l2_norm(table.parameters(), 0.5)
        assert pre == pytest.approx(expected)
        assert float(table.weight.grad.to_dense().norm()) == pytest.approx(post)

    def test_dtypes_mix(self):
        named = [
            ("half", parameter(3.0, dtype=torch.float16)),
            ("brain", parameter(4.0, dtype=torch.bfloat16)),
            ("double", parameter(12.0, dtype=torch.float64)),
        ]
        assert grad_norms(named).total == 13.0

    def test_complex_ones_have_a_norm(self):
        w = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
        w.grad = torch.tensor([3 + 4j])
        assert grad_norms([("w", w)]).total == 5.0


ELEMENTS = st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=20)


@given(ELEMENTS, st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_the_clipped_norm_is_at_most_the_threshold(values, max_norm):
    w = parameter(*values)
    pre, post = clip_global_l2_norm([w], max_norm)
    true = math.hypot(*values)
    assert pre == pytest.approx(true, rel=1e-5, abs=1e-30)
    assert post <= max_norm * (1 + 1e-12)
    assert math.hypot(*w.grad.tolist()) == pytest.approx(post, rel=1e-4, abs=1e-12)


def test_torch_still_loses_a_step_to_one_bad_element():
    # Why attribution must come before the clip, and why ours leaves such gradients alone.
    named = network((math.inf, 1.0), (12.0,))
    nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
    assert named[1][1].grad.tolist() == [0.0]
    named = network((math.nan,), (12.0,))
    nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
    assert math.isnan(named[1][1].grad.item())
