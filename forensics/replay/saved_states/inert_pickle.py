"""Pickles read as data: a stack machine that builds plain values and never calls or imports.

A pickle is a program. ``pickle.load`` runs it; ``torch.load(weights_only=True)`` runs an allowed
part of it and refuses the file as a whole where one argparse namespace lies beside the weights.
Here a global stays a *name*, and an object that only code could rebuild becomes a ``Built``: its
name, its arguments and its state, to be looked through for tensors. Nothing of what the pickle
names is looked up, so nothing in it can run, whatever it holds.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol, cast

from forensics.replay.saved_states.pickle_machine import (
    Built,
    InertPickleError,
    Machine,
    Named,
    Reducer,
    key_of,
)
from forensics.replay.saved_states.pickle_steps import STEPS

__all__ = ["Built", "InertPickleError", "Named", "Reducer", "key_of", "read_pickle"]

MOST_OPCODES = 10_000_000
"""A state of 100,000 tensors takes 6 million. So many empty dicts and memo entries are 1 GiB."""


class Stream(Protocol):
    """What a pickle is read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""

    def readline(self) -> bytes:
        """Up to and with the next newline."""


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
    machine = Machine(persistent, reducers or {}, allowed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # odd escapes in damaged texts
        return _value(machine, stream)


def _value(machine: Machine, stream: Stream) -> Any:
    """Run a pickle on the machine."""
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(cast("IO[bytes]", stream))):
            if count >= MOST_OPCODES:
                raise InertPickleError(f"its pickle has more than {MOST_OPCODES:,} instructions")
            step = STEPS.get(opcode.name)
            if step is None:
                raise InertPickleError(f"its pickle uses {opcode.name}, which no saved state does")
            step(machine, arg)
        return machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, EOFError, OverflowError) as error:
        raise InertPickleError("its pickle is damaged or cut off") from error
    except RecursionError as error:
        raise InertPickleError("its pickle is nested too deeply") from error
