"""A loop in a thread of its own, parked at each step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forensics.replay.trainers.contract import names_a_maker
from forensics.replay.trainers.parked_loop import LoopEndedError, ParkedLoop


def looping(steps: int, left: list[str], error: Exception | None = None) -> ParkedLoop:
    """A loop of so many steps that notes how it was left, and may raise after the last."""

    def run() -> None:
        try:
            for step in range(steps):
                loop.park(step)
            if error is not None:
                raise error
        finally:
            left.append("left")

    loop = ParkedLoop(run)
    return loop


def test_it_is_let_on_a_step_at_a_time() -> None:
    left: list[str] = []
    loop = looping(2, left)
    assert (loop.advance(), loop.advance(), left) == (0, 1, [])
    for _ in range(2):
        with pytest.raises(LoopEndedError):
            loop.advance()
    assert left == ["left"]


def test_what_it_raises_is_raised_where_it_was_let_on_and_again() -> None:
    loop = looping(1, [], OSError("the disk is gone"))
    assert loop.advance() == 0
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            loop.advance()


def test_a_parked_loop_is_unwound_and_its_thread_ends() -> None:
    left: list[str] = []
    loop = looping(5, left)
    loop.advance()
    before = threading.active_count()
    loop.close()
    assert left == ["left"]
    assert threading.active_count() == before - 1


@pytest.mark.parametrize("act", [ParkedLoop.close, ParkedLoop.abandon])
def test_a_loop_that_never_began_needs_no_unwinding(act: Callable[[ParkedLoop], None]) -> None:
    left: list[str] = []
    act(looping(1, left))
    assert left == []


@pytest.mark.parametrize(
    ("code", "is_one"),
    [
        ("def f(): ...", True),
        ("def f(out='x', *, seed=1): ...", True),
        ("def f(*args, **named): ...", True),
        ("def f(config): ...", False),
        ("def f(config=None): ...", False),
        ("def f(out): ...", False),
        ("def f(*, out): ...", False),
        ("@recipe('f')\ndef f(): ...", False),
        ("class f: ...", False),
        ("def g(): ...", False),
        ("def f(: ...", False),
    ],
)
def test_a_function_that_needs_nothing_makes_a_trainer(
    code: str, is_one: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"raise SystemExit  # it is not run\n{code}\n")
    assert names_a_maker(f"{file}:f") is is_one
    assert not names_a_maker(str(file))
    assert not names_a_maker(f"{tmp_path / 'gone.py'}:f")
    assert not names_a_maker("healthy-fp32")
    assert not names_a_maker(None)
