"""A cell, a name or a line of one sign repeated takes time by its length, not by its square.

Two hundred thousand signs take milliseconds where a pattern looks at each once, and half an hour
where it tries every split of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.cli import main
from forensics.diagnose.snapshots import families, layer_of
from forensics.replay.saved_states.roles import is_buffer
from forensics.runlog.params import ParamWriter
from tests.fire.amount import FULL
from tests.fire.limits import limited
from tests.fire.mutation import logs

LONG = 200_000
RUNS = {
    "digits": "0" * LONG + "!",
    "nines": "9" * LONG + "!",
    "decimals": "1." * LONG + "!",
    "blanks": " " * LONG + "!",
    "tabs": "\t" * LONG + "!",
    "lines": "\n" * LONG,
    "letters": "a" * LONG + "(",
    "quotes": '"' * LONG,
    "brackets": "[" * LONG,
    "commas": "," * LONG,
    "pairs": "a=1 " * LONG + "!",
    "colons": "a: 1, " * LONG,
    "rules": "-" * LONG,
    "escapes": "\x1b[" * LONG,
    "words": "loss " * LONG,
    "dots": "." * LONG,
}


SOME = list(RUNS) if FULL else ["digits", "decimals", "lines", "pairs"]


@pytest.mark.parametrize("kind", SOME)
def test_within_any_log(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in logs().items():
        if name.endswith(".gz"):
            continue
        at = data.index(b"\n", len(data) // 3) - 1  # within a number, most often
        path = tmp_path / name
        path.write_bytes(data[:at] + RUNS[kind].encode() + data[at:])
        with limited():
            code = main(["report", str(path), "--format", "json"])
        assert code in (0, 2), (name, capsys.readouterr().err)


@pytest.mark.parametrize("kind", SOME)
def test_in_the_name_of_a_parameter(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "steps.csv").write_bytes(logs()["bad-sample.csv"])
    names = [f"layers.{i}.{RUNS[kind][:40_000]}!" for i in range(4)]
    with ParamWriter(run / "params") as writer:
        for step in range(0, 40, 4):
            norms = np.full(4, 1.0 + step)
            writer.append(step, names, "param", {"grad_l2": norms, "value_l2": norms})
    with limited():
        assert main(["report", str(run), "--verbose"]) == 0
        assert main(["params", str(run)]) == 0
        assert main(["params", str(run), "--format", "markdown", "--param", "layers.1*"]) == 0
        assert main(["report", str(run), "--format", "html"]) == 0
    assert len(capsys.readouterr().out) < 50 * LONG


@pytest.mark.parametrize("kind", RUNS)
def test_in_what_is_looked_up_by_name(kind: str) -> None:
    text = RUNS[kind]
    with limited():
        assert families([text] * 3, {}, 1) is not None
        assert layer_of(f"blocks.7.{text}") == "blocks.7"
        assert not is_buffer(text)
    assert layer_of(f"w{text[:30]}") != ""
    assert is_buffer("block.attn_mask")
    assert is_buffer("mask")
    assert not is_buffer("mask.weight")
