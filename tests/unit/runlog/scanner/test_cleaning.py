from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.cleaning import Dirt, clean, dirt_of

RECORD = b"iteration 7 | loss: 2.5 | grad norm: nan\n"


def cleaned(text: bytes) -> bytes:
    return clean(text, dirt_of(text))


@pytest.mark.parametrize(
    "dirty",
    [
        b"\x1b[32miteration\x1b[0m 7 | loss: \x1b[1;31m2.5\x1b[m | grad norm: nan\n",
        b"\x1b]0;title\x07iteration 7 | loss: 2.5 | grad norm: nan\n",
        b"itX\x08eration 7 | loss: 2.5 | grad norm: nan\n",
        b"itera\0\0tion 7 | loss: 2.5 | grad norm: nan\n",
        b"iteration 7 | loss: 2.5 | grad norm: nan\r\n",
    ],
)
def test_what_a_terminal_would_not_show_is_gone(dirty: bytes) -> None:
    assert cleaned(dirty) == RECORD


def test_each_redraw_of_a_bar_is_a_line() -> None:
    assert cleaned(b"\r 1%|#| 1/90\r 2%|#| 2/90\n") == b"\n 1%|#| 1/90\n 2%|#| 2/90\n"


@pytest.mark.parametrize(
    "prefix",
    [
        *(b"[default7]:", b"[rank0]: ", b"[rank12]:", b"3: ", b"[5] ", b"[1,0]<stdout>:"),
        *(b"[1,mpirank:5,algo-1]<stderr>:", b"[node-17.cluster:3]:", b"(Worker pid=4021) "),
        b"(RayTrainWorker pid=4021, ip=10.0.0.17) ",
    ],
)
def test_prefixes_of_ranks_go_where_most_lines_have_one(prefix: bytes) -> None:
    assert cleaned(prefix + RECORD + prefix + RECORD) == RECORD * 2


def test_a_number_in_front_of_one_line_in_many_stays() -> None:
    text = b"0: first\n" + RECORD * 5
    assert cleaned(text) == text


def test_a_notebook_gives_the_lines_of_its_outputs() -> None:
    lines = ["{'loss': 0.5}\n", "\x1b[1mEpoch 2\x1b[0m\tdone\n"]
    document = {"cells": [{"cell_type": "code", "outputs": [{"output_type": "stream"}]}]}
    document["cells"][0]["outputs"][0]["text"] = lines  # type: ignore[index, assignment]
    text = cleaned(json.dumps(document, indent=1).encode())
    assert b"{'loss': 0.5}\n" in text
    assert b"Epoch 2\tdone" in text


def test_a_container_log_gives_its_lines() -> None:
    record = {"log": "loss: 1.5 \x1b[0m\n", "stream": "stdout", "time": "2026-01-01T00:00:00Z"}
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    assert cleaned(line * 2).replace(b"\n\n", b"\n") == b"loss: 1.5 \n" * 2


def test_lines_that_a_terminal_broke_are_put_together() -> None:
    records = [
        f"[2026-01-{day:02}] step: {day} loss: {3 - day / 50:.5f} grad_norm: 1.2345 "
        f"memory: 66.91GiB tokens: {day * 1000} elapsed: {day * 7} s"
        for day in range(1, 20)
    ]
    broken = "".join(r[i : i + 80] + "\n" for r in records for i in range(0, len(r), 80))
    assert cleaned(broken.encode()).decode().splitlines() == records


def test_records_of_one_length_are_not_broken_lines() -> None:
    text = b"".join(
        b"s:%05d trl:%.4f lr:0.000600 norm:%.2f eval:0.0000 tokens:123456789012\n" % (i, 1 / i, 2)
        for i in range(1, 60)
    )
    assert dirt_of(text) == Dirt()
    assert cleaned(text) == text


def test_lines_below_headings_of_one_length_are_not_broken_lines() -> None:
    text = b"".join(
        b"2024-08-06 10:00:05.%03d host-160750:0  trainer:908  INFO    [step=%d/739328]\n"
        b"    optim/total_grad_norm=0.5\n    train/loss=2.25\n" % (100 + n, n)
        for n in range(1, 9)
    )
    assert dirt_of(text) == Dirt()


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=600))
def test_any_bytes_are_cleaned_and_none_grow(block: bytes) -> None:
    assert len(cleaned(block)) <= len(block)


def message(text: str) -> str:
    return f'{{"__CURSOR":"s=1;i=2","MESSAGE":{json.dumps(text)},"_PID":"12"}}\n'


def test_lines_that_journald_wrapped_are_the_programs_own() -> None:
    lines = [f'step {n} "a\\b" loss {3 - n / 10:.1f}' for n in range(5)]
    assert cleaned("".join(map(message, lines)).encode()).decode().splitlines() == lines


def test_a_message_beside_metrics_is_no_line_of_the_program() -> None:
    text = b'{"step":1,"loss":2.5,"message":"loss is fine"}\n' * 4
    assert cleaned(text) == text


def test_a_document_of_messages_on_one_line_is_judged_at_once() -> None:
    text = b"{" + b'"msg":"loss 2","a":1,' * 20_000 + b"\n"
    start = time.process_time()
    assert cleaned(text) == text
    assert time.process_time() - start < 2
