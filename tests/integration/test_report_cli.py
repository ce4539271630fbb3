"""The installed command in processes of its own: what it loads, pipes, full disks, odd locales."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.cli.test_report import write_log

HEAVY = ("torch", "pandas", "matplotlib", "rich")
PROBE = """
import sys
from forensics.cli import main
code = main(sys.argv[1:])
loaded = [name for name in {heavy!r} if name in sys.modules]
sys.stderr.write("loaded: " + ",".join(loaded))
sys.exit(code)
"""

COMPILED = """
import sys
import forensics
from forensics.cli import main
from forensics.frozen import dataclass
code = main(sys.argv[1:])
modules = [module for name, module in sys.modules.items() if name.startswith("forensics")]
classes = {{each for module in modules for each in vars(module).values() if isinstance(each, type)}}
shared = dataclass(frozen=True)(type("Shared", (), {{}})).__init__
fields = [each for each in classes if "__dataclass_fields__" in vars(each)]
assert len(fields) > 80
compiled = [each.__name__ for each in fields if each.__init__ is not shared]
sys.stderr.write("loaded: " + ",".join(compiled))
sys.exit(code)
"""
"""Says which dataclasses of a report have methods of their own, at 0.4 ms each."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "steps.csv", bad_from=200)


def run(arguments: Sequence[object], cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**clean, **env},
        capture_output=True,
        timeout=60,
        check=False,
    )


def loaded_by(code: str, arguments: Sequence[object], cwd: Path) -> set[str]:
    done = run(["-c", code.format(heavy=HEAVY), *arguments], cwd)
    assert done.returncode == 0, done.stderr
    return set(filter(None, done.stderr.decode().rpartition("loaded: ")[2].split(",")))


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_a_report_loads_nothing_heavy(log: Path, form: str) -> None:
    assert loaded_by(PROBE, ["report", log, "--format", form], log.parent) == set()


def test_a_report_on_a_whole_run_directory_loads_nothing_heavy(log: Path) -> None:
    (log.parent / "run.json").write_text('{"schema_version": 1, "precision": "fp16"}')
    assert loaded_by(PROBE, ["report", log.parent, "-v"], log.parent) == set()


def test_the_probe_would_notice(log: Path) -> None:
    code = f"import {', '.join(HEAVY)}\n{PROBE}"
    assert loaded_by(code, ["report", log], log.parent) == set(HEAVY)


def test_a_report_on_a_sound_log_takes_no_part_of_numpy_that_is_slow_to_import(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "steps.csv")
    code = PROBE.replace("{heavy!r}", "('numpy.ma', 'numpy.fft', 'numpy.random', 'numpy.testing')")
    assert loaded_by(code, ["report", log], tmp_path) == set()


def test_a_report_defines_no_class_whose_methods_are_compiled_for_it(log: Path) -> None:
    assert loaded_by(COMPILED, ["report", log], log.parent) == set()
    another = (
        "import dataclasses\nvars(forensics)['Own'] = dataclasses.dataclass(type('Own', (), {{}}))"
    )
    noticed = COMPILED.replace("code = main", f"{another}\ncode = main")
    assert loaded_by(noticed, ["report", log], log.parent) == {"Own"}


def test_listing_verbs_imports_none_of_them(tmp_path: Path) -> None:
    code = PROBE.replace("{heavy!r}", "('numpy', 'pyarrow', 'forensics.cli.report', 'torch')")
    assert loaded_by(code, ["--help"], tmp_path) == set()


def test_python_m_runs_the_same_command(log: Path) -> None:
    done = run(["-m", "forensics", "report", "steps.csv"], log.parent)
    assert done.returncode == 0
    assert done.stdout.startswith(b"steps.csv   300 steps")
    assert done.stderr == b""


def test_a_pipe_gets_80_columns_and_no_colour(log: Path) -> None:
    done = run(["-m", "forensics", "report", "steps.csv"], log.parent, COLUMNS="200")
    lines = done.stdout.decode("utf-8").splitlines()
    assert b"\x1b" not in done.stdout
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "env", [{"LANG": "C"}, {"LC_ALL": "C", "TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_a_terminal_of_ascii_gets_ascii(log: Path, env: dict[str, str]) -> None:
    done = run(["-m", "forensics", "report", "steps.csv"], log.parent, **env)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"->" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="shell pipes")
def test_a_reader_that_leaves_early_changes_neither_code_nor_peace(log: Path) -> None:
    report = [sys.executable, "-m", "forensics", "report", str(log), "--fail-on", "error"]
    command = f"{shlex.join(report)} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=log.parent, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"1\n"
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line_and_2(log: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "forensics", "report", str(log)],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"forensics: standard output: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_terminal_gets_colour_and_its_width(log: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LANG": "C.UTF-8"}
    for name in ("NO_COLOR", "LC_ALL"):
        env.pop(name, None)
    subprocess.run(
        [sys.executable, "-m", "forensics", "report", str(log)],
        stdout=follower,
        env=env,
        timeout=60,
        check=True,
    )
    os.close(follower)
    seen = b""
    while chunk := _read(leader):
        seen += chunk
    os.close(leader)
    assert b"\x1b[1;31mVERDICT\x1b[0m" in seen
    plain = seen.replace(b"\x1b[0m", b"").decode("utf-8").splitlines()
    assert 80 < max(map(len, plain)) <= 110


def _read(descriptor: int) -> bytes:
    """What a pseudo-terminal holds; Linux ends it by an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
