"""What each instruction of a pickle does to the machine; those that are not here are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forensics.replay.saved_states.pickle_machine import Machine


def _push(machine: Machine, value: Any) -> None:
    machine.stack.append(value)


def _tuple_of(count: int) -> Callable[[Machine, Any], None]:
    def step(machine: Machine, _: Any) -> None:
        if len(machine.stack) < count:
            raise IndexError("the stack is too short")
        values = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(values)

    return step


def _call(machine: Machine, _: Any) -> None:
    args = machine.stack.pop()
    machine.call(machine.stack.pop(), args)


def _call_with_keywords(machine: Machine, _: Any) -> None:
    keywords, args, callee = (machine.stack.pop() for _ in range(3))
    machine.call(callee, (*args, keywords))


def _global(machine: Machine, arg: Any) -> None:
    module, _, name = arg.partition(" ")
    machine.named(module, name)


def _stack_global(machine: Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a global's name is no text")
    machine.named(module, name)


def _drop_since_mark(machine: Machine, _: Any) -> None:
    machine.since_mark()


def _pairs(machine: Machine, _: Any) -> None:
    machine.store(machine.since_mark())


def _pair(machine: Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.store([key, value])


def _dict_since_mark(machine: Machine, _: Any) -> None:
    pairs = machine.since_mark()
    machine.stack.append({})
    machine.store(pairs)


def _remember(machine: Machine, index: Any) -> None:
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

STEPS: Mapping[str, Callable[[Machine, Any], None]] = {
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
