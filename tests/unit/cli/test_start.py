"""The first milliseconds of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from forensics.__main__ import answer


def test_an_interrupt_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "forensics.cli", Interrupted("forensics.cli"))
    assert answer() == 130
    assert capsys.readouterr().err == "forensics: interrupted\n"


def test_it_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_to: list[tuple[object, object]] = []
    monkeypatch.setattr(signal, "signal", lambda number, action: set_to.append((number, action)))
    monkeypatch.setattr(sys, "argv", ["forensics", "--version"])
    assert answer() == 0
    assert capsys.readouterr().out.startswith("forensics ")
    # An interrupt after the answer must not change the exit code.
    assert [number for number, _ in set_to] == [signal.SIGTERM, signal.SIGINT]
    assert set_to[-1][1] == signal.SIG_IGN


@pytest.mark.skipif(sys.platform == "win32", reason="no signals here")
def test_a_time_limit_ends_a_verb_in_order(tmp_path: Path) -> None:
    """SIGTERM while an output is being written: 143, one line, and nothing half-written."""
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n" + "".join(f"{i},1.5\n" for i in range(10)))
    out = tmp_path / "out.csv"
    slow = (
        "import os, signal, sys\n"
        "from forensics.__main__ import run\n"
        "def terminated(*_): os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.replace = os.rename = terminated\n"
        f"sys.argv = ['forensics', 'convert', {str(log)!r}, '--out', {str(out)!r}]\n"
        "sys.exit(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", slow], capture_output=True, text=True, timeout=60)
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "forensics: terminated"
    assert sorted(tmp_path.iterdir()) == [log]


@pytest.mark.skipif(sys.platform == "win32", reason="no signals here")
@pytest.mark.parametrize(
    ("number", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_a_signal_within_a_callback_of_the_garbage_collector_is_not_lost(
    number: str, code: int, said: str
) -> None:
    lost = (
        "import os, signal, sys, time, weakref\n"
        "import click, forensics.cli.rules\n"
        "from forensics.__main__ import run\n"
        "class Thing: pass\n"
        "def busy(*_, **__):\n"
        "    thing = Thing()\n"
        f"    kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.{number}))\n"
        "    del thing\n"
        "    time.sleep(9)\n"
        "forensics.cli.rules.rules.callback = busy\n"
        "sys.argv = ['forensics', 'rules']\n"
        "sys.exit(run())\n"
    )
    done = subprocess.run([sys.executable, "-c", lost], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, f"forensics: {said}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no signals here")
@pytest.mark.parametrize(
    ("number", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_a_signal_while_torch_is_imported_ends_in_a_line(
    tmp_path: Path, number: str, code: int, said: str
) -> None:
    """torch's C++ aborts where an exception comes out of what it imports."""
    (tmp_path / "torch.py").write_text(
        f"import os, signal\ntry:\n    os.kill(os.getpid(), signal.{number})\n"
        "except BaseException:\n    os.abort()\nprint('imported')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "forensics", "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
    )
    assert (done.returncode, done.stderr) == (code, f"forensics: {said}\n")
    assert done.stdout == ""
