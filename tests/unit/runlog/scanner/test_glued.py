"""Prints of two processes on one line."""

from __future__ import annotations

from pathlib import Path

from forensics.runlog.scanner.glued import Glue
from forensics.runlog.scanner.printed_lines import printed_line
from tests.unit.runlog.importers.logs import column, read


def line(step: int) -> str:
    return f"step {step} loss {3 - step / 100:.4f} lr 1.0e-04"


def test_two_prints_on_a_line_are_two_rows(tmp_path: Path) -> None:
    text = "".join(line(n) + ("" if n % 5 == 1 else "\n") for n in range(40))
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(40))
    assert column(table, "loss")[2] == 2.98


def test_a_print_that_another_one_cuts_in_two_gives_its_beginning(tmp_path: Path) -> None:
    torn = "step 7 loss 2.9300 " + line(8) + " lr 1.0e-04\n\n"
    text = "".join(line(n) + "\n" for n in range(7)) + torn + line(9) + "\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(10))
    assert column(table, "loss")[7:9] == [2.93, 2.92]


def test_a_line_that_says_the_word_twice_of_itself_stays_whole() -> None:
    lines = [f"step {n} loss 2.5, best step {n - 1}".encode() for n in range(1, 9)]
    shapes = frozenset(found.shape for one in lines if (found := printed_line(one)))
    assert Glue(lines, shapes).parts(lines[0]) == [lines[0]]
