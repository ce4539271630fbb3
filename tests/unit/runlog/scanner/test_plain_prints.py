"""A log of one print is read by one pattern as it would be line by line, or not by it at all."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from forensics.runlog.scanner.plain_prints import plain_prints
from forensics.runlog.scanner.printed_lines import printed_line
from forensics.runlog.steps import StepTable

PRINTS = [
    "step {n} loss {loss} lr {lr}",
    "[2024-03-01 10:{n:02}:07,123] iter {n}: loss={loss}, grad_norm={norm}, 12.5 ms",
    "step {n}/900 | loss: {loss} | lr: {lr} | 3 GPUs 1e3",
    "batch {n} train loss {loss} (-0.5)",
    "it {n} loss {loss} {norm} x",
    "step {n} losses 1.5 2 loss {loss}",
    "step: {n}, loss: {loss}, val_loss: {norm}",
    "epoch {epoch} step {n} loss {loss} lr {lr}",
    "Train: [{epoch}/9][{n}/900] loss {loss} (2.5) lr {lr}",
]
VALUES = st.sampled_from(["2.5", "nan", "-inf", "3", "1e-05", "-0.25", "1,234.5", "NaN", "1.5e+3"])
BETWEEN = st.sampled_from(
    [
        "saved to disk in 3.5 s",
        "Validation begins",
        "Epoch 3",
        "loss is fine",
        "best val loss 2.0",
        "",
        "Gradient overflow.  Skipping step, reducing loss scale to 4096.0",
        "step 3 loss",
    ]
)


def tables(path: Path) -> tuple[StepTable, StepTable]:
    """The log as it is read, and line by line."""
    whole = load_run(path, Reading(format_in="print-lines")).steps
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["forensics.runlog.importers.print_lines"]
        patch.setattr(module, "plain_prints", lambda *_: None)
        return whole, load_run(path, Reading(format_in="print-lines")).steps


@settings(
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_both_ways_agree(data: st.DataObject, tmp_path: Path) -> None:
    text = data.draw(st.sampled_from(PRINTS))
    step, lines = 0, []
    for _ in range(data.draw(st.integers(12, 30))):
        step = max(step + data.draw(st.sampled_from([1, 1, 1, 1, 1, 10, 0, -5])), 0)
        odd = data.draw(st.integers(0, 9)) == 0
        loss = data.draw(VALUES) if odd else f"{2 + step / 97:.4f}"
        norm, epoch = f"{1 + step / 31:.3f}", step // 9
        lines.append(text.format(n=step, loss=loss, norm=norm, lr="3e-04", epoch=epoch))
        if data.draw(st.integers(0, 11)) == 0:
            lines.append(data.draw(BETWEEN))
    path = tmp_path / "it.log"
    path.write_text("\n".join(lines) + "\n")
    one, two = tables(path)
    assert list(one) == list(two)
    for name in two:
        np.testing.assert_array_equal(one.present(name), two.present(name))
        np.testing.assert_array_equal(one[name], two[name])
    assert one.facts == two.facts


def prints_of(*lines: str) -> object:
    texts = [line.encode() for line in lines]
    first = printed_line(texts[0])
    assert first is not None
    return plain_prints(texts, first.shape)


def test_plain_prints_are_known() -> None:
    for text in PRINTS[:4]:
        made = [text.format(n=n, loss=2.5, norm=1.5, lr="1e-4") for n in (1, 2, 12)]
        assert prints_of(*made) is not None, text


@pytest.mark.parametrize(
    "lines",
    [
        ["loss 2.5 lr 0.1", "loss 2.25 lr 0.1"],
        ["step 1 loss 2.5", "step 2 loss 2.5", "step 3 val loss 2.5"],
        ["step 1 loss_a 2.5", "step 2 loss_a 2.5"],
        ["step 1 loss 2.5 ok", "step 2 loss 2.5 no"],
    ],
    ids=["no count", "two prints", "only like a loss", "words that change"],
)
def test_prints_that_tell_more_are_not(lines: list[str]) -> None:
    assert prints_of(*lines) is None


def test_epochs_on_the_lines_are_plain_while_the_count_goes_on() -> None:
    made = [f"epoch {n // 3} step {n} loss 2.5" for n in range(9)]
    prints = prints_of(*made)
    assert prints is not None
    block = "\n".join(made).encode() + b"\n"
    assert prints.cells(block) == [(b"%d" % n, b"2.5") for n in range(9)]  # type: ignore[attr-defined]
    assert prints.cells(b"epoch 3 step 0 loss 2.5\n") is None  # type: ignore[attr-defined]


def test_a_block_that_tells_more_is_refused() -> None:
    made = [f"step {n} loss 2.5" for n in range(5)]
    text = "\n".join(made).encode() + b"\n"

    def cells(more: bytes) -> object:
        prints = prints_of(*made)
        assert prints is not None
        return prints.cells(text + more)  # type: ignore[attr-defined]

    assert cells(b"wrote a file\n") == [(b"%d" % n, b"2.5") for n in range(5)]
    for more in (b"Epoch 2\n", b"validating\n", b"the loss!\n", b"Gradient overflow\n"):
        assert cells(more) is None
