"""Build values from rows of the database, also from damaged rows.

Constraints keep plain SQL from storing a text where a number belongs. But they can be switched off, and a file can be
damaged. One such row must not make the others unreadable: a value of another type than its field is replaced by the
nearest one that fits, or by a neutral one. The doctor names the row.
"""

import math
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)
J = TypeVar("J")
Convert = Callable[[Any], Any]


def record(kind: type[T], row: Sequence[Any]) -> T:
    """Build a struct from a row that has a value for each of its first fields."""
    return kind(*fitting(kind, row))


def fitting(kind: type[Struct], row: Sequence[Any]) -> Sequence[Any]:
    """Return the row with values that fit the fields of the struct."""
    allowed, converts = _fields(kind)
    if all(map(isinstance, row, allowed)):
        return row
    each = zip(row, allowed, converts, strict=False)
    return [value if isinstance(value, fits) else convert(value) for value, fits, convert in each]


def integer(value: Any, otherwise: Any = 0) -> Any:
    """Return the value as an integer. What is not a number is replaced."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and math.isfinite(value) else otherwise


def text(value: Any, otherwise: Any = "") -> Any:
    """Return the value as text. NULL is replaced."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return otherwise if value is None else str(value)


def decoded(value: Any, kind: type[J], otherwise: J) -> J:
    """Decode JSON of this type. NULL is replaced, and so is what plain SQL stored instead of it."""
    try:
        return otherwise if value is None else msgspec.json.decode(text(value), type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return otherwise


def _number(value: Any, otherwise: Any = 0.0) -> Any:
    return float(value) if isinstance(value, (int, float)) else otherwise


def _data(value: Any, otherwise: Any = b"") -> Any:
    return otherwise if value is None else str(value).encode()


_CONVERTS: dict[type, tuple[tuple[type, ...], Callable[[Any, Any], Any], Any]] = {
    bool: ((bool, int), integer, False),
    int: ((int,), integer, 0),
    float: ((float, int), _number, 0.0),
    str: ((str,), text, ""),
    bytes: ((bytes,), _data, b""),
}


@cache
def _fields(kind: type[Struct]) -> tuple[list[tuple[type, ...]], list[Convert]]:
    hints = get_type_hints(kind)
    found = [_field(hints[name]) for name in kind.__struct_fields__]
    return [allowed for allowed, _ in found], [convert for _, convert in found]


def _field(annotation: Any) -> tuple[tuple[type, ...], Convert]:
    """Return the types that a field takes, and what makes another value fit."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    is_optional = type(None) in parts
    plain = next((one for one in parts if one in _CONVERTS), None)
    if plain is None and all(get_origin(one) is not None for one in parts):  # a Literal, which is text
        plain = str if all(isinstance(value, str) for one in parts for value in get_args(one)) else None
    if plain is None:
        return (object,), lambda value: value
    allowed, convert, neutral = _CONVERTS[plain]
    otherwise = None if is_optional else neutral
    if is_optional:
        allowed = (*allowed, type(None))
    return allowed, lambda value: convert(value, otherwise)
