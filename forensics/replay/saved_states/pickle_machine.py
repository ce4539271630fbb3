"""The stack machine that reads pickles as data, and the plain values it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_RUNNING_MODULES = frozenset(
    [
        "os",
        "posix",
        "nt",
        "sys",
        "subprocess",
        "shutil",
        "importlib",
        "runpy",
        "ctypes",
        "_ctypes",
        "socket",
        "pty",
        "code",
        "codeop",
        "webbrowser",
        "pickle",
        "_pickle",
        "cloudpickle",
        "dill",
        "marshal",
        "imp",
        "commands",
        "timeit",
        "pdb",
        "bdb",
        "urllib",
        "http",
        "ftplib",
        "smtplib",
    ]
)
_RUNNING_BUILTINS = frozenset(
    [
        "exec",
        "eval",
        "compile",
        "open",
        "input",
        "__import__",
        "breakpoint",
        "execfile",
        "globals",
        "locals",
        "vars",
    ]
)
_RUNNING = frozenset({"io.open", "_io.open", "io.open_code", "_io.open_code", "_io.FileIO"})
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


class InertPickleError(Exception):
    """The pickle is damaged, or more than a saved state has any use for; the text says which."""


@dataclass(frozen=True, slots=True)
class Named:
    """A global that a pickle names, such as ``collections.OrderedDict``: the name alone."""

    name: str


@dataclass(eq=False, slots=True)
class Built:
    """An object that was not rebuilt.

    Attributes:
        name: the class or function that would have rebuilt it.
        args: what it would have been given.
        state: what would have been set on it; None for nothing.
        items: what would have been appended to it.
        entries: what would have been stored in it by key.
    """

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    entries: dict[Any, Any] = field(default_factory=dict)


Reducer = Callable[[tuple[Any, ...]], Any]
"""Makes a value from the arguments that a pickle gives to a global."""


class Machine:
    """The stack, the marks in it and the memo of one pickle.

    Args:
        persistent: makes a value from a persistent id; None where there must be none.
        reducers: how to make a value where a global of this name is called.
        allowed: the globals that may be named; None allows all but those that could only do harm.
    """

    def __init__(
        self,
        persistent: Callable[[Any], Any] | None,
        reducers: Mapping[str, Reducer],
        allowed: frozenset[str] | None,
    ) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self._persistent, self._reducers, self._allowed = persistent, reducers, allowed

    def since_mark(self) -> list[Any]:
        """The values above the latest mark, taken off the stack."""
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def named(self, module: str, name: str) -> None:
        """Push a global's name; nothing is looked up."""
        module = _PYTHON_2.get(module, module)
        full = f"{module}.{name}"
        if self._allowed is not None and full not in self._allowed:
            raise InertPickleError(f"its pickle names {full[:100]}, which has no business there")
        if _would_run(module, name):
            raise InertPickleError(f"would run {full[:100]} if loaded as usual; it was not run")
        self.stack.append(Named(full))

    def call(self, callee: Any, args: Any) -> None:
        """Push what stands for a call: a reducer's value, or an object that was not built."""
        if not isinstance(callee, Named) or not isinstance(args, tuple):
            raise ValueError("calls what is no global")
        reducer = self._reducers.get(callee.name)
        self.stack.append(Built(callee.name, args) if reducer is None else reducer(args))

    def persist(self, key: Any) -> None:
        """Push the value of a persistent id."""
        if self._persistent is None:
            raise InertPickleError("its pickle refers to storages, and there are none")
        self.stack.append(self._persistent(key))

    def store(self, pairs: Sequence[Any]) -> None:
        """Set keys and values in turn on the dict or object that is on top."""
        target = self.stack[-1]
        into = target.entries if isinstance(target, Built) else target
        if not isinstance(into, dict):
            raise ValueError("sets an item of what has none")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            into[key_of(key, len(into))] = value

    def extend(self, values: Sequence[Any]) -> None:
        """Append to the list or object that is on top."""
        target = self.stack[-1]
        into = target.items if isinstance(target, Built) else target
        if not isinstance(into, list):
            raise ValueError("appends to what is no list")
        into.extend(values)

    def build(self) -> None:
        """Set a state on the object below it."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Built):
            target.state = state  # what is set on others (an OrderedDict's _metadata) is not needed


def _would_run(module: str, name: str) -> bool:
    """Is this a global whose only use in a saved state is to do harm?"""
    if module == "builtins":
        return name in _RUNNING_BUILTINS
    return module.partition(".")[0] in _RUNNING_MODULES or f"{module}.{name}" in _RUNNING


_PLAIN = (str, bytes, int, float, type(None))


def key_of(key: Any, position: int) -> Any:
    """A dict key that is quick to hash: plain, a flat tuple or an object (by its identity).

    Else its name, or its position.
    """
    if isinstance(key, (*_PLAIN, Built)):
        return key
    if isinstance(key, tuple) and all(isinstance(part, _PLAIN) for part in key):
        return key
    return key.name if isinstance(key, Named) else f"<key {position}>"
