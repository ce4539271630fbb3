import math

import pytest
import torch
from torch import nn

from forensics.record.ema import ExponentialMovingAverage
from forensics.record.extra_columns import ExtraColumns, param_digest, peak_memory

ALL = ("update_l2", "param_l2", "ema_l2_distance", "param_digest", "tokens_per_s")


def layer() -> nn.Linear:
    made = nn.Linear(2, 1)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[3.0, 4.0]]))
        made.bias.fill_(12.0)
    return made


def test_norms_are_of_the_state_before_the_step_and_the_update_is_what_it_changed():
    model = layer()
    ema = ExponentialMovingAverage(model, 0.5)
    ema.shadow["weight"].zero_()
    extras = ExtraColumns(ALL, list(model.named_parameters()), ema)
    digest = param_digest(list(model.named_parameters()))
    extras.count_tokens(512)
    extras.before_update()
    with torch.no_grad():
        model.bias += 0.5
        model.weight[0, 1] += 0.25
    cells, updates = extras.after_update()
    assert cells["param_l2"] == 13.0
    assert cells["ema_l2_distance"] == 5.0
    assert cells["update_l2"] == pytest.approx(math.hypot(0.5, 0.25))
    assert updates == {"weight": 0.25, "bias": 0.5}
    assert cells["param_digest"] == digest
    assert cells["tokens_per_s"] > 0


def test_only_what_is_asked_for_is_taken():
    model = layer()
    extras = ExtraColumns(("param_l2",), list(model.named_parameters()))
    extras.before_update()
    assert extras.after_update() == ({"param_l2": 13.0}, {})


def test_nothing_is_due_where_nothing_is_asked_for():
    assert not ExtraColumns((), []).due(0)


def test_rows_in_between_are_left_empty():
    extras = ExtraColumns(("param_l2",), [], log_every=3)
    assert [step for step in range(8) if extras.due(step)] == [0, 3, 6]


def test_tokens_add_up_between_the_rows_that_tell_them(monkeypatch):
    now = iter([10.0, 12.0])
    monkeypatch.setattr("forensics.record.extra_columns.time.perf_counter", lambda: next(now))
    extras = ExtraColumns(("tokens_per_s",), list(layer().named_parameters()))
    for _ in range(4):
        extras.count_tokens(100)
    assert extras.after_update()[0]["tokens_per_s"] == 200.0


class TestDigest:
    def values(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {"a": torch.randn(7), "b": torch.randn(3, 5).to(torch.bfloat16), "c": torch.ones(())}

    def digest(self, values) -> str:
        return param_digest(list(values.items()))

    def test_is_the_same_for_the_same_bits(self):
        assert self.digest(self.values()) == self.digest(self.values())
        assert len(self.digest(self.values())) == 16

    @pytest.mark.parametrize("bit", [0, 1, 17, 30, 31])
    def test_changes_with_any_bit(self, bit):
        values = self.values()
        before = self.digest(values)
        words = values["a"].view(torch.int32)
        words[3] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
        assert self.digest(values) != before

    def test_changes_where_two_elements_swap(self):
        values = self.values()
        before = self.digest(values)
        values["a"] = values["a"].flip(0)
        assert self.digest(values) != before

    def test_sees_equal_pairs(self):
        # An exclusive-or of hashes would cancel them.
        assert self.digest({"a": torch.zeros(4)}) != self.digest({"a": torch.ones(4)})

    def test_tells_the_two_zeros_and_nan_apart(self):
        kinds = [torch.tensor([x]) for x in (0.0, -0.0, math.nan)]
        assert len({self.digest({"a": value}) for value in kinds}) == 3

    def test_does_not_depend_on_strides(self):
        square = torch.randn(4, 4)
        strided = square.t().contiguous().t()
        assert self.digest({"a": square}) == self.digest({"a": strided})


def test_peak_memory_is_in_bytes():
    assert 50e6 < peak_memory(torch.device("cpu")) < 1e12
