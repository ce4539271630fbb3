"""Pickles read as data: right for plain values, inert for everything else."""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import pickle
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.replay.saved_states.inert_pickle import (
    Built,
    InertPickleError,
    Named,
    read_pickle,
)

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def read(value: Any, protocol: int = 2) -> Any:
    return read_pickle(io.BytesIO(pickle.dumps(value, protocol)))


@settings(deadline=None, max_examples=60)
@given(value=plain, protocol=st.sampled_from(PROTOCOLS))
def test_plain_values_are_what_pickle_makes_of_them(value: Any, protocol: int) -> None:
    assert read(value, protocol) == value


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=60))
def test_whatever_the_bytes_it_is_a_value_or_the_one_error(raw: bytes) -> None:
    with contextlib.suppress(InertPickleError):  # any other exception fails the test
        read_pickle(io.BytesIO(raw + b"."))


def test_the_stream_is_left_right_after_the_pickle() -> None:
    stream = io.BytesIO(pickle.dumps(1) + pickle.dumps([2]))
    assert read_pickle(stream) == 1
    assert read_pickle(stream) == [2]


class Touching:
    """Unpickling it would run a command."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.made_of = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.made_of


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "harm",
    [
        (os.system, "touch {}"),
        (exec, "open('{}', 'w').close()"),
        (open, "{}", "w"),
        (os.mkdir, "{}"),
    ],
    ids=["system", "exec", "open", "mkdir"],
)
def test_code_is_refused_by_name_and_not_run(
    harm: tuple[Any, ...], protocol: int, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    function, *args = harm
    raw = pickle.dumps(Touching(function, *(a.format(str(marker)) for a in args)), protocol)
    with pytest.raises(InertPickleError, match=r"would run .* if loaded as usual; it was not run"):
        read_pickle(io.BytesIO(raw))
    assert not marker.exists()
    made = pickle.loads(raw)
    if made:
        made.close()
    assert marker.exists()  # the probe can fail


def test_a_function_that_nobody_blocked_is_not_run_either(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    found = read(Touching(Path.touch, marker), 4)
    assert isinstance(found, Built)
    assert found.name == "pathlib.Path.touch"
    assert not marker.exists()


def test_objects_stay_names_arguments_and_state() -> None:
    found = read(argparse.Namespace(lr=0.1))
    assert (found.name, found.state) == ("argparse.Namespace", {"lr": 0.1})
    found = read(collections.OrderedDict(a=1))
    assert (found.name, found.entries) == ("collections.OrderedDict", {"a": 1})
    assert read(collections.OrderedDict) == Named("collections.OrderedDict")


def test_only_what_is_allowed_may_be_named() -> None:
    raw = pickle.dumps([PurePosixPath("x")], 2)
    with pytest.raises(InertPickleError, match=r"pathlib\.PurePosixPath, which has no business"):
        read_pickle(io.BytesIO(raw), allowed=frozenset({"torch.Size"}))
    assert read_pickle(io.BytesIO(raw), allowed=frozenset({"pathlib.PurePosixPath"}))


def test_a_key_that_takes_ages_to_hash_is_not_hashed() -> None:
    key: Any = ()
    for _ in range(60):
        key = (key, key)  # 2^60 leaves in 60 tuples
    stream = b"\x80\x02}" + b")" + b"2\x86" * 60 + b"K\x01s."
    start = time.perf_counter()
    assert list(read_pickle(io.BytesIO(stream)).values()) == [1]
    assert time.perf_counter() - start < 30.0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02]",
        b"\x80\x02K\x01K\x02s.",  # sets an item of a number
        b"\x80\x02e.",  # no mark
        b"\x80\x02h\x07.",  # never remembered
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a text of 2^63 bytes
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray of 2^63 bytes
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # a number of 2^31 bytes
        b"\x80\x02r\xff\xff\xff\xff.",  # remembers an empty stack at 2^32
        b"\x80\x02N)R.",  # calls None
        b"I" + b"9" * 10_000 + b"\n.",
        b"\x80\x02\x82\x01.",  # an extension code
    ],
)
def test_damage_is_one_error(raw: bytes) -> None:
    with pytest.raises(InertPickleError, match="pickle"):
        read_pickle(io.BytesIO(raw))


def test_a_memo_index_of_four_billion_allocates_nothing() -> None:
    assert read_pickle(io.BytesIO(b"\x80\x02K\x05r\xfe\xff\xff\xff.")) == 5


def test_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.replay.saved_states.inert_pickle.MOST_OPCODES", 100)
    assert read_pickle(io.BytesIO(b"N" * 90 + b".")) is None
    with pytest.raises(InertPickleError, match="more than 100 instructions"):
        read_pickle(io.BytesIO(b"N" * 200 + b"."))
