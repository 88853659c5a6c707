"""What a solution's process may say to the one that judges it."""

import json
import math
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, deque
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.scoring.humaneval.values import UNKNOWN, decode, encode

SIMPLE = st.none() | st.booleans() | st.integers() | st.text()
FLOATS = st.floats(allow_nan=False)
COMPLEX = st.complex_numbers(allow_nan=False)
DECIMALS = st.decimals(allow_nan=False)
ATOMS = st.one_of(SIMPLE, FLOATS, COMPLEX, DECIMALS, st.binary(), st.fractions())
HASHABLE = st.recursive(ATOMS, lambda inner: st.lists(inner).map(tuple), max_leaves=5)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(HASHABLE, inner),
    max_leaves=8,
)
KEYS = st.sampled_from(["int", "set", "numpy", "x"])
JSON = st.recursive(
    SIMPLE | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)
)


def sent(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@given(VALUES | st.sets(HASHABLE))
def test_plain_values_arrive_as_they_are(value):
    arrived = sent(value)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, (set, dict))


@given(JSON)
def test_what_is_no_value_raises_nothing_else(data):
    with suppress(ValueError):
        decode(data)


class Pair(NamedTuple):
    first: int
    second: int


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Pair(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (frozenset({1}), frozenset({1})),
        ({frozenset({1}), frozenset()}, {frozenset({1}), frozenset()}),
        ({frozenset({1}): 2}, {frozenset({1}): 2}),
        (UserList([1, (2,)]), [1, (2,)]),
        (UserDict(a=UserList([1])), {"a": [1]}),
        (UserString("ab"), "ab"),
        (ChainMap({"a": 1}, {"b": 2}), {"b": 2, "a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({"a": 1}.keys(), {"a"}),
        (bytearray(b"ab"), b"ab"),
        (Decimal("1e-400"), Decimal("1e-400")),
        (Fraction(1, 3), Fraction(1, 3)),
    ],
)
def test_instances_of_a_subclass_arrive_as_what_they_contain(value, arrives):
    assert sent(value) == arrives
    assert type(sent(value)) is type(arrives)


@pytest.mark.parametrize("kind", [float, int, str, list])
def test_a_value_that_lies_is_compared_by_its_content(kind):
    liar = type("Liar", (kind,), {"__eq__": lambda *_: True, "__hash__": lambda _: 0})()
    assert liar == 2
    assert sent(liar) == kind() != 2
    assert type(sent([liar])[0]) is kind


def test_numbers_and_arrays_of_numpy_keep_their_type():
    """EvalPlus accepts them only if they are exactly right."""
    for value in (numpy.float64(0.5), numpy.int8(3), numpy.bool_(True)):
        assert sent(value) == value
        assert type(sent(value)) is type(value)
    for array in (numpy.eye(2), numpy.zeros((2, 0), int), numpy.array([1 + 2j])):
        assert sent(array).dtype == array.dtype
        assert numpy.array_equal(sent(array), array)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [object(), deque([1]), range(3), print, type, ENDLESS, numpy.array([object()]), iter([1])],
)
def test_all_others_are_unknown_and_equal_nothing(value):
    assert sent(value) is UNKNOWN
    assert sent(value) != value


def test_numbers_that_json_has_not():
    assert sent(-(10**5000)) == -(10**5000)
    assert math.isnan(sent(math.nan))
    assert sent([-math.inf, -0.0]) == [-math.inf, 0.0]


@pytest.mark.parametrize(
    "data",
    [
        *({"code": "x"}, {"int": "0x1", "str": ""}, {}, {"int": "one"}, {"set": [[1]]}),
        *({"dict": [[1]]}, {"complex": ["1", 2]}, {"bytes": 5}, {"fraction": [1, 0]}),
        *({"decimal": "one"}, {"numpy": ["object", [1]]}, {"numpy": ["S9", ["x"]]}),
        {"numpy": ["int8", "x"]},
    ],
)
def test_forged_values_are_refused(data):
    with pytest.raises(ValueError, match=r"."):
        decode(data)
