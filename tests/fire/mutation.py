"""Inputs that were damaged, edited by hand, or made up: what a report must stand."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RUNS = ("bad-sample", "fp16-overflow", "healthy-resumed", "nan-applied", "scaler-oscillation")

TOKENS = (
    b"", b"\0", b"\0" * 300, b"\n", b"\r", b"\r\n", b",", b",,,,,,,", b'"', b"'", b";", b"\t", b"{",
    b"}", b"[", b"]", b"[" * 3000, b'{"a":' * 3000, b"nan", b"NaN", b"-inf", b"Infinity", b"1e999",
    b"-1e-999", b"9" * 400, b"-1", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"18446744073709551616", b"4611686018427387904", b"1e308", b"-1e308",
    b"5e-324", b"0x10", b"1_000", b"1,000.5", b"tensor(nan)", b"True", b"null", b"\xef\xbb\xbf",
    b"\xff\xfe", b"\x80\x81\xfe", b"\x1b[2J", "é日本\u202e".encode(), b"step", b"loss",
    b"step,loss\n", b"skipped", b"0" * 70000, b"x" * 200000, b"%s%n", b"=1+1", b"../../etc/passwd",
    b" " * 50000, b"\n" * 50000, b"9" * 50000 + b"!", b"1." * 30000, b"a" * 50000 + b"(",
    b"\"" * 9999, b"1.0, " * 20000, b"a=1 " * 20000, b"-" * 50000,
)  # fmt: skip
"""What breaks readers: ends of formats, edges of numbers, other encodings, names with a meaning."""

LEAVES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -0.0,
    5e-324, float("nan"), float("inf"), "", "nan", "x" * 100_000, "\x1b[2J", [], {}, [[]],
    {"a": {}}, [None], [1, "a"], "finished", "2026-13-45T99:00:00", -5.5, ["layers.0.weight"] * 3,
)  # fmt: skip
"""What a JSON field may hold instead of what it should."""

_MEGATRON = (
    " iteration {:8d}/      60 | consumed samples: {:9d} | elapsed time per iteration (ms): 3.5 | "
    "learning rate: 1.0E-04 | global batch size: 8 | lm loss: {:.6E} | loss scale: 65536.0 | "
    "grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?")


def logs() -> Mapping[str, bytes]:
    """Small logs of ours and of others, by file name."""
    found = {
        f"{name}.csv": b"".join((SAMPLES / name / "steps.csv").read_bytes().splitlines(True)[:90])
        for name in RUNS
    }
    losses = [(i, 3.0 - i / 50) for i in range(60)]
    records = [
        {
            "step": 10 * i,
            "loss": loss,
            "learning_rate": 1e-4,
            "grad_norm": 1.0 + i % 3,
            "epoch": i / 7,
        }
        for i, loss in losses
    ]
    state = {"global_step": 600, "log_history": records, "max_steps": 600, "epoch": 9.0}
    head = "[2026-01-01 00:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0]"
    lines = {
        "trainer.log": [str({k: v for k, v in r.items() if k != "step"}) for r in records],
        "history.jsonl": [json.dumps(record) for record in records],
        "megatron.log": [_MEGATRON.format(i + 1, i * 8, loss) for i, loss in losses],
        "deepspeed.log": [
            f"{head} step={i}, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]\nstep {i} loss {loss:.4f}"
            for i, loss in losses
        ],
        "plain.log": [f"epoch 1 step {i}: loss {loss:.4f}, lr 1e-4" for i, loss in losses],
        "metrics.csv": [
            "epoch,lr-Adam,step,train_loss,val_loss",
            *(f"{i // 10},0.001,{i * 50 + 49},{x},{'' if i % 10 else x}" for i, x in losses),
        ],
    }
    found |= {name: "\n".join([*text, ""]).encode() for name, text in lines.items()}
    found["trainer_state.json"] = json.dumps(state, indent=1).encode()
    found["zipped.csv.gz"] = gzip.compress(found["bad-sample.csv"], mtime=0)
    return found


def mutated(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One to four damages at random places."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = chance.choice(_DAMAGES)(data, others, chance)
    return data


def _cut(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    start, end = sorted(chance.randrange(len(data) + 1) for _ in "12")
    return chance.choice((data[:start], data[start:], data[:start] + data[end:]))


def _insert(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(TOKENS) + data[at:]


def _flip(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(data), chance.choice((1, 3, 30)))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _number(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Another number, or no number, in place of some."""
    there = [match.span() for match in _NUMBER.finditer(data[:200_000])]
    for start, end in sorted(chance.sample(there, min(len(there), chance.choice((1, 5, 50)))))[
        ::-1
    ]:
        data = data[:start] + chance.choice(TOKENS) + data[end:]
    return data


def _lines(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Lines in another order, twice, glued together, or of another log."""
    lines = data.split(b"\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        lines[at], lines[to] = lines[to], lines[at]
    elif kind == 1:
        lines[at:at] = lines[to : to + 20]
    elif kind == 2:
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    elif kind == 3:
        lines = sorted(lines, key=lambda _: chance.random())
    else:
        lines[at:at] = chance.choice(others).split(b"\n")[:30]
    return b"\n".join(lines)


_DAMAGES: tuple[Callable[[bytes, list[bytes], random.Random], bytes], ...] = (
    _cut, _insert, _insert, _flip, _number, _number, _lines
)  # fmt: skip


def mutated_json(value: Any, chance: random.Random) -> Any:
    """A JSON value with some of its parts replaced, gone, or doubled."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 2, 5))):
        holder = value
        while True:
            keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = chance.choice(keys)
            inner = holder[key]
            if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
                holder = inner
                continue
            if chance.random() < 0.2:
                del holder[key]
            else:
                holder[key] = copy.deepcopy(chance.choice(LEAVES))
            break
    return value


def mutated_run(place: Path, name: str, chance: random.Random) -> Path:
    """A sample run with one of its files damaged."""
    run = place / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(SAMPLES / name, run, ignore=shutil.ignore_patterns("expected.json"))
    path = chance.choice([run / "run.json", run / "run.json", *run.glob("*/*"), run / "steps.csv"])
    if path.name == "run.json" and chance.random() < 0.8:
        path.write_text(json.dumps(mutated_json(json.loads(path.read_bytes()), chance)))
    else:
        path.write_bytes(mutated(path.read_bytes(), [b"x"], chance))
    return run
