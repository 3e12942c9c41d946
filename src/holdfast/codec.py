"""Payloads as JSON: from values to text that a person can read, and back into the same types.

Encoding is strict about what JSON cannot say (NaN, lone surrogates) and about size and depth, so that what was
accepted here can be decoded anywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.inspect

from .errors import InvalidPayload, PayloadTooLarge
from .failure import shorten

if TYPE_CHECKING:
    from pathlib import PurePath


MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 64
PIECE_BYTES = 256 * 1024
_SQUARE = bytes.maketrans(b"{}", b"[]")
_DEEPER = b"[" * (MAX_DEPTH + 1)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# Apart, since a pattern that begins with a letter is searched for faster than a choice of two.
_find_time_without_offset = re.compile(rb'T\d\d:\d\d:\d\d(?:\.\d+)?"').search
_find_number_as_key = re.compile(rb'"-?\d+(?:\.\d+)?":').search


def _pure_path() -> type[PurePath]:
    from pathlib import PurePath  # here, since it takes long to import and few payloads hold a path

    return PurePath


def _encode_hook(value: Any) -> Any:
    if isinstance(value, _pure_path()):
        return str(value)
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json")
    if value is None or isinstance(value, (tuple, list, dict, frozenset)):  # as a value it would not come here
        raise InvalidPayload(f"a key of type {type(value).__qualname__} cannot be stored as JSON: use text")
    raise InvalidPayload(
        f"a value of type {type(value).__qualname__} cannot be stored as JSON: "
        "pass plain data, a dataclass, a msgspec Struct or a pydantic model"
    )


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted is object:
        return value
    if issubclass(wanted, _pure_path()):
        return wanted(value)
    return wanted.model_validate(value)  # type: ignore[attr-defined]  # see _refuse_unreadable


def _check_hook(wanted: type, value: Any) -> Any:
    if isinstance(value, wanted):
        return value
    raise ValueError(f"Expected `{wanted.__qualname__}`, got `{type(value).__qualname__}`")


_encode_any = msgspec.json.Encoder(enc_hook=_encode_hook).encode


def encode(value: Any) -> bytes:
    """The value as JSON, or InvalidPayload."""
    try:
        data = _encode_any(value)
    except InvalidPayload:
        raise
    except UnicodeEncodeError:
        raise InvalidPayload("a text in the payload is not valid UTF-8: it holds a lone surrogate") from None
    except RecursionError:
        raise InvalidPayload(f"the payload is nested deeper than {MAX_DEPTH} levels, or refers to itself") from None
    except Exception as error:
        raise InvalidPayload(f"the payload cannot be stored as JSON: {shorten(str(error))}") from error
    if isinstance(value, msgspec.Raw):  # it is taken as it is
        _require_json(data)
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(
            f"the payload has {len(data):,} bytes and may have {MAX_BYTES:,}: store it elsewhere and pass a reference"
        )
    # Whether it looks as if the value had NaN (written as null), a naive datetime, twin keys, or great depth.
    if (
        b"null" in data
        or _find_time_without_offset(data) is not None
        or _find_number_as_key(data) is not None
        or (len(data) > 2 * MAX_DEPTH and _is_too_deep(data))
    ):
        _inspect(value)
    return data


def checker(wanted: Any) -> Callable[[Any], None]:
    """A function that raises msgspec.ValidationError for a value which is not of the wanted type.

    JSON alone would let bytes pass for a str, which is what they are written as.
    """
    from datetime import date, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    as_they_are = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)

    def check(value: Any) -> None:
        msgspec.convert(value, wanted, builtin_types=as_they_are, dec_hook=_check_hook)

    return check


def _refuse_unreadable(wanted: Any) -> None:
    """Raise TypeError where the type, or one inside it, cannot be made from JSON."""
    found = [msgspec.inspect.type_info(wanted)]
    seen: list[Any] = []
    while found:
        one = found.pop()
        if one in seen:
            continue
        seen.append(one)
        if isinstance(one, msgspec.inspect.CustomType) and not (
            isinstance(one.cls, type)
            and (one.cls is object or issubclass(one.cls, _pure_path()) or hasattr(one.cls, "model_validate"))
        ):
            raise TypeError(f"values of type {getattr(one.cls, '__qualname__', one.cls)} cannot be read from JSON")
        found.extend(_parts_of(one))


def _parts_of(one: Any) -> list[Any]:
    parts: list[Any] = []
    for name in one.__struct_fields__ if isinstance(one, msgspec.Struct) else ():
        value = getattr(one, name)
        parts += [
            part
            for part in (value if isinstance(value, tuple) else (value,))
            if isinstance(part, (msgspec.inspect.Type, msgspec.inspect.Field))
        ]
    return parts


def encode_result(value: Any) -> bytes:
    """The same for what a job is to have as its result, and says so."""
    try:
        return encode(value)
    except InvalidPayload as error:
        raise type(error)(str(error).replace("payload", "result")) from error.__cause__


def decoder(wanted: Any) -> Callable[[bytes], Any]:
    """A function from JSON to the wanted type. It raises msgspec.DecodeError or msgspec.ValidationError."""
    if wanted is not Any:
        _refuse_unreadable(wanted)
    decode = msgspec.json.Decoder(wanted, dec_hook=_decode_hook).decode

    def limited(data: bytes) -> Any:
        if len(data) > MAX_BYTES:  # a row that was written by hand
            raise msgspec.DecodeError(f"the payload has {len(data):,} bytes and may have {MAX_BYTES:,}")
        if len(data) > 2 * MAX_DEPTH and _is_too_deep(data):
            raise msgspec.DecodeError(f"the payload is nested deeper than {MAX_DEPTH} levels")
        try:
            return decode(data)
        except RecursionError:
            raise msgspec.DecodeError("the payload is nested too deep") from None
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(f"the payload is not UTF-8: {error}") from None

    return limited


def _is_too_deep(data: bytes) -> bool:
    """How deep msgspec itself goes depends on the version of Python."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    left = b"".join(_outside_strings(data)).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):  # each time, the innermost level goes
        if not left or _DEEPER in left:
            return bool(left)
        left = left.replace(b"[]", b"")
    return b"[]" in left or _DEEPER in left


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """In pieces, since it may be large. Each byte is looked at a few times, whatever it is."""
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside = 0
    for start in range(0, len(data), PIECE_BYTES):
        parts = data[start : start + PIECE_BYTES].split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2


def is_json(data: bytes) -> bool:
    try:
        _decode_any(data)
    except msgspec.DecodeError:
        return False
    return True


def _require_json(data: bytes) -> None:
    if not is_json(data):
        raise InvalidPayload("the payload is a msgspec.Raw that holds no JSON, or is not UTF-8")


def _inspect(value: Any) -> None:
    """Walk the value level by level and name what JSON would lose."""
    level = [msgspec.to_builtins(value, enc_hook=_inspect_hook, builtin_types=(datetime,))]
    depth = 0
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list, tuple)):
                if depth > MAX_DEPTH:
                    raise InvalidPayload(f"the payload is nested deeper than {MAX_DEPTH} levels: flatten it")
                below.extend(item)  # of a dict, the keys
                if isinstance(item, dict):
                    _refuse_twins(item)
                    below.extend(item.values())
            else:
                _refuse_lossy(item)
        level = below


def _inspect_hook(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else _encode_hook(value)


def _refuse_twins(item: dict[Any, Any]) -> None:
    texts = {str(key) for key in item}
    if len(texts) < len(item):
        raise InvalidPayload("two keys of the payload are the same in JSON, such as 1 and '1': use texts that differ")


def _refuse_lossy(item: Any) -> None:
    if isinstance(item, float) and not math.isfinite(item):
        raise InvalidPayload(f"the payload holds {item}, which JSON cannot express: pass None or text")
    if isinstance(item, datetime) and item.utcoffset() is None:
        raise InvalidPayload(
            f"the payload holds the naive datetime {item.isoformat()}, which means another moment on "
            "another machine: give it a time zone, such as datetime.now(timezone.utc)"
        )


_decode_any = decoder(Any)
