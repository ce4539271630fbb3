"""The frozen dataclass with shared methods: whatever the standard one does, for a class as ours."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.frozen import dataclass


def _point(decorate: Callable[[type], type]) -> Any:
    """A class with fields of every kind, made by a decorator."""

    class Point:
        x: float
        y: float = 0.0
        labels: Mapping[str, str] = field(default_factory=dict)
        source: object = field(default=None, repr=False, compare=False)

    return decorate(Point)


Ours = _point(dataclass(frozen=True))
Theirs = _point(dataclasses.dataclass(frozen=True))
OursByName = _point(dataclass(frozen=True, kw_only=True))
TheirsByName = _point(dataclasses.dataclass(frozen=True, kw_only=True))


@dataclass(frozen=True)
class Whole:
    """A class that can be pickled."""

    part: int
    rest: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wider(Whole):
    """One with another field."""

    more: str = ""


@dataclass(frozen=True, eq=False)
class Single:
    """One that equals itself alone."""

    part: int


def _outcome(cls: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """What making an instance gives: its fields, or that the call is wrong."""
    try:
        made = cls(*args, **named)
    except TypeError:
        return TypeError
    return asdict(made)


_ARGUMENTS = st.dictionaries(st.sampled_from(["x", "y", "labels", "source", "z"]), st.integers())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(), max_size=5).map(tuple), _ARGUMENTS)
def test_takes_and_refuses_the_arguments_that_the_standard_one_does(
    args: tuple[int, ...], named: dict[str, int]
) -> None:
    assert _outcome(Ours, args, named) == _outcome(Theirs, args, named)
    assert _outcome(OursByName, args, named) == _outcome(TheirsByName, args, named)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Ours(), "missing a required argument: 'x'"),
        (lambda: Ours(1, 2, {}, None, 5), "too many positional arguments"),
        (lambda: Ours(1, x=2), "multiple values for argument 'x'"),
        (lambda: Ours(1, z=2), "unexpected keyword argument 'z'"),
    ],
)
def test_says_what_is_wrong_with_a_call(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


def test_tells_the_same_of_its_fields_and_of_its_signature() -> None:
    told = [(f.name, f.default, f.kw_only, f.repr, f.compare) for f in fields(OursByName)]
    assert told == [(f.name, f.default, f.kw_only, f.repr, f.compare) for f in fields(TheirsByName)]
    assert is_dataclass(Ours)
    assert Ours.__match_args__ == Theirs.__match_args__
    for ours, theirs in ((Ours, Theirs), (OursByName, TheirsByName)):
        one, other = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
        assert [(p.name, p.kind) for p in one.values()] == [
            (p.name, p.kind) for p in other.values()
        ]
        assert one["y"].default == 0.0
        assert one["x"].default is inspect.Parameter.empty


def test_shows_and_compares_what_the_standard_one_does() -> None:
    assert repr(Ours(1.5, source="hidden")) == repr(Theirs(1.5, source="hidden"))
    assert Ours(1.0, source=1) == Ours(1, source=2)
    assert Ours(1.0) != Ours(2.0)
    assert Ours(1.0) != Theirs(1.0)
    assert Whole(1) != Wider(1)
    assert len({Whole(1, (2,)), Whole(1, (2,)), Whole(1)}) == 2
    assert Single(1) != Single(1)
    assert len({Single(1), Single(1)}) == 2


def test_a_default_that_is_made_is_made_for_each_instance() -> None:
    one, other = Ours(1.0), Ours(1.0)
    assert one.labels == {}
    assert one.labels is not other.labels


def test_nothing_can_be_set_or_deleted() -> None:
    point = Ours(1.0)
    with pytest.raises(FrozenInstanceError, match="'x'"):
        point.x = 2.0
    with pytest.raises(FrozenInstanceError, match="'new'"):
        point.new = 2.0
    with pytest.raises(FrozenInstanceError, match="'x'"):
        del point.x
    assert point.x == 1.0


def test_a_changed_a_copied_and_a_pickled_instance_are_as_they_should() -> None:
    whole = Wider(1, (2, 3), more="m")
    assert replace(whole, part=5) == Wider(5, (2, 3), "m")
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert copy.deepcopy(whole) == whole


def test_what_is_not_frozen_is_refused() -> None:
    with pytest.raises(TypeError, match="frozen"):
        dataclass(frozen=False)
