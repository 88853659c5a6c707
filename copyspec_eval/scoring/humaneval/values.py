"""Python values as JSON and back, by their content: reading runs no code of who wrote them."""

import re
import sys
from collections import UserList, UserString
from collections.abc import Callable, Iterable, Mapping, Set
from decimal import Decimal
from fractions import Fraction
from typing import Any

_NUMPY_TYPE = re.compile(r"bool|u?int[0-9]{1,2}|float[0-9]{2}|complex[0-9]{2,3}")
UNKNOWN = object()  # stands for a value of another type; equal to no value but itself
_UNKNOWN_DATA = {"unknown": None}


def encode(value: Any) -> Any:
    """`value` as JSON: an object of one name, the type's, where JSON has no such type.

    Instances of a subclass become instances of the builtin type, as does what equals its contents:
    `UserList`, `UserString` and all mappings. What is nested too deeply is unknown as a whole.

    >>> encode([1, (2.5, None), {3: "x"}])
    [1, {'tuple': [2.5, None]}, {'dict': [[3, 'x']]}]
    >>> encode(object())
    {'unknown': None}
    """
    try:
        return _encoded(value)
    except RecursionError:
        return _UNKNOWN_DATA


def decode(data: Any) -> Any:
    """The value that `encode` made JSON of; `ValueError` for anything else.

    >>> decode({"tuple": [2.5, {"set": [1]}]})
    (2.5, {1})
    """
    try:
        return _decoded(data)
    except (TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"no value: {error}") from error


def _encoded(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if value is None or isinstance(value, bool):
        return value
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.number, numpy.bool_)):
        known = _NUMPY_TYPE.fullmatch(value.dtype.name)
        return {"numpy": [value.dtype.name, _encoded(value.tolist())]} if known else _UNKNOWN_DATA
    for kinds, encoder in _ENCODERS:
        if isinstance(value, kinds):
            return encoder(value)
    return _UNKNOWN_DATA


def _all_encoded(items: Iterable[Any]) -> list[Any]:
    return list(map(_encoded, items))


_ENCODERS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (int, lambda value: int(value) if abs(int(value)) < 2**63 else {"int": hex(int(value))}),
    (float, float),
    (str, str.__str__),
    (list, _all_encoded),
    (tuple, lambda value: {"tuple": _all_encoded(value)}),
    (dict, lambda value: {"dict": [*map(_all_encoded, dict.items(value))]}),
    (frozenset, lambda value: {"frozenset": _all_encoded(value)}),
    (Set, lambda value: {"set": _all_encoded(value)}),
    ((UserList, UserString), lambda value: _encoded(value.data)),
    (Mapping, lambda value: {"dict": [*map(_all_encoded, value.items())]}),
    (complex, lambda value: {"complex": [value.real, value.imag]}),
    ((bytes, bytearray), lambda value: {"bytes": value.hex()}),
    (Fraction, lambda value: {"fraction": _all_encoded((value.numerator, value.denominator))}),
    (Decimal, lambda value: {"decimal": str(value)}),
)


def _decoded(data: Any) -> Any:
    if isinstance(data, list):
        return [_decoded(item) for item in data]
    if not isinstance(data, dict):
        return data
    [(kind, content)] = data.items()
    return _DECODERS[kind](content)


def _numpy_value(content: Any) -> Any:
    import numpy

    name, items = content
    if not _NUMPY_TYPE.fullmatch(name):
        raise ValueError(f"no value: numpy type {name!r:.60}")
    array = numpy.array(_decoded(items), dtype=name)
    return array if isinstance(items, list) else array[()]


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "dict": lambda content: {_decoded(key): _decoded(item) for key, item in content},
    "tuple": lambda content: tuple(_decoded(item) for item in content),
    "set": lambda content: {_decoded(item) for item in content},
    "frozenset": lambda content: frozenset(_decoded(item) for item in content),
    "complex": lambda content: complex(*content),
    "bytes": bytes.fromhex,
    "fraction": lambda content: Fraction(*map(_decoded, content)),
    "decimal": Decimal,
    "numpy": _numpy_value,
    "unknown": lambda content: UNKNOWN,
}
