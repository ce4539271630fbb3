"""What a stranger wrote never reaches the terminal as it came: every verb, every format."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from forensics.cli import main
from tests.fire.hostile import ESCAPES, LINES, MARKUP, SAMPLES, TEXT, hostile_run

OWN_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What our own text may use on a terminal."""
OWN_BARS = re.compile(r"\x1b\[(\?25[hl]|[0-9]*[ABDGK]|[0-9;]*m)|\r")
"""What bars on standard error use: the cursor hidden and shown, lines redrawn."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("stranger"))


def unprintable(text: str) -> list[str]:
    """Everything in it that a terminal might act on."""
    return [char for char in text if not char.isprintable() and char != "\n"]


def commands(run: Path) -> dict[str, list[str]]:
    """A command a verb and form."""
    found = {}
    states = str(run / "checkpoints")
    log = str(run / "steps.csv")
    for form in ("text", "json", "markdown"):
        end = ["--format", form]
        found |= {
            f"report {form}": ["report", str(run), "--verbose", *end],
            f"params {form}": ["params", str(run), *end],
            f"params of some {form}": ["params", str(run), "--param", "layer*", *end],
            f"compare {form}": ["compare", str(run), str(SAMPLES / "bad-sample"), *end],
            f"scan {form}": ["scan", str(run.parent), *end],
            f"inspect {form}": ["inspect", states, *end],
            f"bisect states {form}": ["bisect", "--ckpt-dir", states, *end],
            f"bisect run {form}": ["bisect", str(run), *end],
            f"bisect a broken recipe {form}": ["bisect", str(run), "--recipe", TEXT, *end],
            f"capsule {form}": ["capsule", "run", str(run), *end],
        }
    return found | {
        "report brief": ["report", str(run)],
        "report page": ["report", str(run), "--format", "html"],
        "report a log": ["report", log],
        "convert": ["convert", log, "--out", "-"],
        "convert to a hostile place": ["convert", log, "--out", str(run.parent / f"{ESCAPES}.csv")],
        "convert to nowhere": ["convert", log, "--out", str(run / TEXT[:20] / "x.csv")],
        "plot": ["plot", str(run)],
        "plot-scale": ["plot-scale", str(run)],
        "plot-params": ["plot-params", str(run)],
        "plot-compare": ["plot-compare", str(run), str(SAMPLES / "bad-sample")],
        "show": ["plot", str(run), "--show"],
        "show scale": ["plot-scale", str(run), "--show"],
        "show params": ["plot-params", str(run), "--show"],
        "show compare": ["plot-compare", str(run), str(SAMPLES / "bad-sample"), "--show"],
        "watch": ["watch", str(run), "--until-idle", "0.1", "--interval", "0.05"],
        "record": ["record", "healthy-mlp", "--resume", "--out", str(run)],
        "record anew": ["record", "healthy-mlp", "--out", str(run)],
        "record by its config": ["record", "healthy-mlp", "--config", str(run / "run.json")],
        "record there": [
            "record",
            "healthy-mlp",
            "--steps",
            "2",
            "--out",
            f"{ESCAPES}r",
            "--overwrite",
        ],
        "print a config": [
            "record",
            "healthy-mlp",
            "--set",
            f"model.activation={TEXT}",
            "--print-config",
        ],
        "no verb": [TEXT],
        "no path": ["report", TEXT],
        "no rule": ["rules", TEXT],
        "no choice": ["report", str(run), "--format", TEXT],
        "no option": ["report", f"--{TEXT}"],
        "no number": ["record", "healthy-mlp", "--steps", TEXT],
        "no setting": ["record", "healthy-mlp", "--set", f"{TEXT}=1"],
        "no recipe": ["record", TEXT],
        "no format": ["report", log, "--format-in", TEXT],
        "no column": ["report", log, "--map", f"loss={TEXT}"],
        "no condition": ["bisect", str(run), "--bad", TEXT],
        "no device": ["record", "healthy-mlp", "--device", TEXT],
        "no policy": ["record", "healthy-mlp", "--keep", TEXT],
        "hostile settings": ["report", log, "--config", str(run.parent / "hostile.toml")],
        "a hostile recipe": ["record", str(run.parent / "hostile.py")],
        "a list of recipes": ["record", str(run.parent / "hostile.py"), "--list"],
    }


@pytest.fixture(autouse=True)
def _home(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    key = json.dumps(TEXT.replace("\x7f", ""))
    (run.parent / "hostile.toml").write_text(f"[thresholds.loss-spike]\n{key} = 1\n")
    (run.parent / "hostile.py").write_text(
        "from forensics import recipe\n"
        f"@recipe({TEXT!r}, {LINES!r})\ndef made(config):\n    raise ValueError({LINES!r})\n"
    )


NAMES = list(commands(Path("run")))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_acts_on_a_terminal_gets_through(
    name: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(commands(run)[name])
    out, err = capfd.readouterr()
    assert code in (0, 1, 2, 3, 4), err
    assert out + err
    assert unprintable(out) == []
    assert unprintable(err) == []
    assert "Traceback" not in err


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal, and keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """All that was written."""
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith(("json", "markdown"))])
def test_nor_with_colours_and_bars(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    main(commands(run)[name])
    assert unprintable(OWN_COLOUR.sub("", out.text())) == []
    assert unprintable(OWN_BARS.sub("", err.text())) == []
    for part in ("\x1b[2J", "\x1b]0;", "\x9b"):
        assert part not in out.text() + err.text()


def test_the_probe_can_fail() -> None:
    assert unprintable(ESCAPES) == list("\x1b\x1b\x07\x9b\u202e\x08\x7f")
    assert unprintable(MARKUP) == []
    assert OWN_BARS.sub("", "\x1b[2J") == "\x1b[2J"
