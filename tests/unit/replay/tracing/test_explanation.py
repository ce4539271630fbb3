"""Why an operator made a non-finite value: the sentence that goes with its numbers."""

from __future__ import annotations

import pytest
import torch

from forensics.replay.op_trace import Birth
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.explanation import explain, is_overflow
from forensics.replay.tracing.tensor_stats import stats_of


def birth(operator: str, kind: str, *inputs: object, out: object = None, **parts: object) -> Birth:
    def stats(value: object):
        return stats_of(value if isinstance(value, torch.Tensor) else torch.tensor(value))

    made = out if out is not None else [float(kind)]
    return Birth(
        kind=kind,
        operator=operator,
        phase=Phase.FORWARD,
        inputs=tuple(map(stats, inputs)),
        output=stats(made),
        **parts,
    )


inf, nan = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("made", "words", "overflow"),
    [
        (birth("aten.log", "inf", [0.0, 1.0]), "exact zeros", False),
        (
            birth("aten.log", "nan", [-2.0, 1.0]),
            "negative number: its input goes down to -2",
            False,
        ),
        (birth("aten.sqrt", "nan", [-0.5]), "of a negative number", False),
        (birth("aten.div", "inf", [1.0], [0.0, 2.0]), "a division by 0", False),
        (birth("aten.div", "nan", [0.0], [0.0]), "0/0", False),
        (birth("aten.div", "inf", [1.0], numbers=(0.0,)), "division by the number 0", False),
        (birth("aten.rsqrt", "inf", [0.0, 4.0]), "a division by 0", False),
        (birth("aten.pow", "inf", [0.0, 300.0], numbers=(2.0,)), "abs-max 300", True),
        (birth("aten.pow", "inf", [0.0, 3.0], numbers=(-1.0,)), "a division by 0", False),
        (birth("aten.exp", "inf", [91.0]), "float32 ends at 3.4e+38", True),
        (birth("aten.std", "nan", [1.0]), "a single element", False),
        (birth("aten._softmax", "nan", [[-inf, -inf]]), "whole row of its input is -Inf", False),
        (birth("aten.sub", "nan", [inf], [inf]), "2 infinite inputs", False),
        (birth("aten.mm", "nan", [1e30], [-1e30]), "with both signs", False),
        (birth("aten.nll_loss_forward", "nan", [1.0]), "every target is ignored", False),
        (birth("aten._foreach_addcdiv", "nan", [1.0], [0.0], [0.0]), "0/0", False),
    ],
)
def test_each_reason_is_given_with_its_numbers(made, words, overflow):
    assert words in explain(made)
    assert is_overflow(made) is overflow


def test_the_limit_is_that_of_the_result_s_dtype():
    made = birth(
        "aten.addmm", "inf", [300.0], [250.0], out=torch.tensor([inf], dtype=torch.float16)
    )
    assert explain(made) == (
        "aten.addmm made Inf: inputs abs-max 300 and 250; float16 ends at 65,504"
    )


def test_a_leaf_is_told_by_what_it_is():
    made = birth("optimizer:w.exp_avg", "nan", out=[[1.0, nan]], leaf=True)
    assert explain(made) == (
        "optimizer state w.exp_avg holds NaN before any operator: 1 of 2 elements, first at [0, 1]"
    )
