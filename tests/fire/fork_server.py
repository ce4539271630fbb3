"""A process that has imported torch once and forks a child for each request.

``python -m tests.fire.fork_server`` reads one JSON object a line and answers with one:

* ``{"run": "module:function", "args": [...], "said": PATH}`` forks a child that calls the function
  and exits with what it returns (70: it raised); its output goes to ``said``. Answer: ``pid``.
* ``{"kill": PID}`` sends SIGKILL. Answer: ``{}``.
* ``{"wait": PID}`` answers with ``code``: the exit code, or minus the signal.

The server alone reaps its children, so a killed pid is never anybody else's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

PRELOADED = ("tests.fire.training", "pyarrow.parquet", "torch._dynamo")
"""The last is what the first optimizer of a process imports, and takes longer than torch itself."""
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Child:
    """A forked process; its output is in ``said``."""

    server: ForkServer
    pid: int
    said: Path

    def kill(self) -> int:
        """``kill -9``; the exit code: -9, or its own where it was done before."""
        self.server.ask(kill=self.pid)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        return int(self.server.ask(wait=self.pid)["code"])

    def text(self) -> str:
        """What it has said so far."""
        return self.said.read_text(errors="replace")


class ForkServer:
    """The server seen from the test; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, function: Callable[..., int], *args: Any, said: Path) -> Child:
        """Fork a child that calls ``function(*args)``; of a module and of plain values."""
        name = f"{function.__module__}:{function.__qualname__}"
        answer = self.ask(
            run=name, args=[str(a) if isinstance(a, Path) else a for a in args], said=str(said)
        )
        return Child(self, int(answer["pid"]), said)

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def serve() -> None:
    """Answer requests until standard input ends."""
    for module in PRELOADED:
        import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            answer = {"pid": _fork(request)}
        elif "kill" in request:
            os.kill(request["kill"], signal.SIGKILL)
            answer = {}
        else:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        module, _, name = request["run"].partition(":")
        code = getattr(import_module(module), name)(*request["args"])
    except BaseException:  # noqa: BLE001 - the child must never fall back into the server's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
