"""Pickles read as data: a stack machine that builds plain values and never calls or imports.

A pickle is a program. ``pickle.load`` runs it; ``torch.load(weights_only=True)`` runs an allowed
part of it and refuses the file as a whole where one argparse namespace lies beside the weights.
Here a global stays a *name*, and an object that only code could rebuild becomes a ``Built``: its
name, its arguments and its state, to be looked through for tensors. Nothing of what the pickle
names is looked up, so nothing in it can run, whatever it holds.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, cast

MOST_OPCODES = 10_000_000
"""A state of 100,000 tensors takes 6 million. So many empty dicts and memo entries are 1 GiB."""

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


class Stream(Protocol):
    """What a pickle is read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""

    def readline(self) -> bytes:
        """Up to and with the next newline."""


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


def read_pickle(
    stream: Stream,
    *,
    persistent: Callable[[Any], Any] | None = None,
    reducers: Mapping[str, Reducer] | None = None,
    allowed: frozenset[str] | None = None,
) -> Any:
    """The value of the next pickle of a stream; the stream is left right after it.

    Containers become lists, tuples and dicts (sets become lists). A dict key that is a nested
    tuple is replaced with a text: hashing one can take ages.

    Args:
        stream: seekable or not; only as much as the pickle takes is read.
        persistent: makes a value from a persistent id; without it such a pickle is refused.
        reducers: how to make a value where a global of this name is called.
        allowed: refuse every global that is not of these names; None leaves the others inert.

    Raises:
        InertPickleError: it is damaged, too large, names something that could only do harm, or
            something that is not allowed.
    """
    machine = _Machine(persistent, reducers or {}, allowed)
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(cast("IO[bytes]", stream))):
            if count >= MOST_OPCODES:
                raise InertPickleError(f"its pickle has more than {MOST_OPCODES:,} instructions")
            step = _STEPS.get(opcode.name)
            if step is None:
                raise InertPickleError(f"its pickle uses {opcode.name}, which no saved state does")
            step(machine, arg)
        return machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError) as error:
        raise InertPickleError("its pickle is damaged or cut off") from error
    except RecursionError as error:
        raise InertPickleError("its pickle is nested too deeply") from error


class _Machine:
    """The stack, the marks in it and the memo of one pickle."""

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
        module = _PYTHON_2.get(module, module)
        full = f"{module}.{name}"
        if self._allowed is not None and full not in self._allowed:
            raise InertPickleError(f"its pickle names {full[:100]}, which has no business there")
        if _would_run(module, name):
            raise InertPickleError(f"would run {full[:100]} if loaded as usual; it was not run")
        self.stack.append(Named(full))

    def call(self, callee: Any, args: Any) -> None:
        if not isinstance(callee, Named) or not isinstance(args, tuple):
            raise ValueError("calls what is no global")
        reducer = self._reducers.get(callee.name)
        self.stack.append(Built(callee.name, args) if reducer is None else reducer(args))

    def persist(self, key: Any) -> None:
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
        target = self.stack[-1]
        into = target.items if isinstance(target, Built) else target
        if not isinstance(into, list):
            raise ValueError("appends to what is no list")
        into.extend(values)

    def build(self) -> None:
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


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _: Any) -> None:
        if len(machine.stack) < count:
            raise IndexError("the stack is too short")
        values = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(values)

    return step


def _call(machine: _Machine, _: Any) -> None:
    args = machine.stack.pop()
    machine.call(machine.stack.pop(), args)


def _call_with_keywords(machine: _Machine, _: Any) -> None:
    keywords, args, callee = (machine.stack.pop() for _ in range(3))
    machine.call(callee, (*args, keywords))


def _global(machine: _Machine, arg: Any) -> None:
    module, _, name = arg.partition(" ")
    machine.named(module, name)


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a global's name is no text")
    machine.named(module, name)


def _drop_since_mark(machine: _Machine, _: Any) -> None:
    machine.since_mark()


def _pairs(machine: _Machine, _: Any) -> None:
    machine.store(machine.since_mark())


def _pair(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.store([key, value])


def _dict_since_mark(machine: _Machine, _: Any) -> None:
    pairs = machine.since_mark()
    machine.stack.append({})
    machine.store(pairs)


def _remember(machine: _Machine, index: Any) -> None:
    machine.memo[int(index)] = machine.stack[-1]


_PUSHES = [
    "INT",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG",
    "LONG1",
    "LONG4",
    "FLOAT",
    "BINFLOAT",
    "UNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "STRING",
    "SHORT_BINSTRING",
    "BINSTRING",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
    "BYTEARRAY8",
]

_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(_PUSHES, _push),
    **dict.fromkeys(["PROTO", "FRAME", "STOP"], lambda machine, arg: None),
    **dict.fromkeys(
        ["GET", "BINGET", "LONG_BINGET"], lambda m, arg: m.stack.append(m.memo[int(arg)])
    ),
    **dict.fromkeys(["PUT", "BINPUT", "LONG_BINPUT"], _remember),
    "MEMOIZE": lambda m, _: _remember(m, len(m.memo)),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": _drop_since_mark,
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_SET": lambda m, _: m.stack.append([]),
    "LIST": lambda m, _: m.stack.append(m.since_mark()),
    "FROZENSET": lambda m, _: m.stack.append(m.since_mark()),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.since_mark()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "DICT": _dict_since_mark,
    "SETITEM": _pair,
    "SETITEMS": _pairs,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _call_with_keywords,
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, arg: m.persist(arg),
    "BINPERSID": lambda m, _: m.persist(m.stack.pop()),
}
