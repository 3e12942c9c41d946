"""Encode payloads and results as readable JSON, and decode them into the annotated types.

Encoding rejects values that JSON cannot represent (NaN, lone surrogates) and limits size and depth, so that every
accepted payload can be decoded anywhere.
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
MAX_STATE_BYTES = 64 * 1024
MAX_DEPTH = 64
PIECE_BYTES = 256 * 1024
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_TOO_DEEP = b"[" * (MAX_DEPTH + 1)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

# Two patterns rather than one alternation: a pattern with a literal prefix is searched faster.
_find_time_without_offset = re.compile(rb'T\d\d:\d\d:\d\d(?:\.\d+)?"').search
_find_number_as_key = re.compile(rb'"-?\d+(?:\.\d+)?":').search


def _pure_path() -> type[PurePath]:
    from pathlib import PurePath  # imported here: slow to import, and few payloads hold a path

    return PurePath


def _encode_hook(value: Any) -> Any:
    if isinstance(value, _pure_path()):
        return str(value)
    if hasattr(value, "model_dump"):  # a pydantic model
        return value.model_dump(mode="json")
    if value is None or isinstance(
        value, (tuple, list, dict, frozenset)
    ):  # as a value it needs no hook, so it is a key
        raise InvalidPayload(f"a key of type {type(value).__qualname__} cannot be stored as JSON: use a str")
    raise InvalidPayload(
        f"a value of type {type(value).__qualname__} cannot be stored as JSON: "
        "pass plain data, a dataclass, a msgspec Struct or a pydantic model"
    )


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted is object:
        return value
    if issubclass(wanted, _pure_path()):
        return wanted(value)
    return wanted.model_validate(value)  # type: ignore[attr-defined]  # checked by _require_decodable


def _check_hook(wanted: type, value: Any) -> Any:
    if isinstance(value, wanted):
        return value
    raise ValueError(f"Expected `{wanted.__qualname__}`, got `{type(value).__qualname__}`")


_encode_any = msgspec.json.Encoder(enc_hook=_encode_hook).encode


def encode_state(value: Any) -> bytes:
    """Return the state of a job as JSON. Raises InvalidPayload or PayloadTooLarge."""
    if not isinstance(value, dict):
        raise InvalidPayload(f"state must be a dict, got {type(value).__qualname__}")
    data = encode(value)
    if len(data) > MAX_STATE_BYTES:
        raise PayloadTooLarge(
            f"state must have at most {MAX_STATE_BYTES:,} bytes of JSON, got {len(data):,}: store the data elsewhere "
            "and save a reference"
        )
    return data


def encode(value: Any) -> bytes:
    """Return the value as JSON. Raises InvalidPayload if that would lose something."""
    try:
        data = _encode_any(value)
    except InvalidPayload:
        raise
    except UnicodeEncodeError:
        raise InvalidPayload("a str in the payload is not valid UTF-8: it has a lone surrogate") from None
    except RecursionError:
        raise InvalidPayload(f"the payload is nested deeper than {MAX_DEPTH} levels, or refers to itself") from None
    except Exception as error:
        raise InvalidPayload(f"the payload cannot be stored as JSON: {shorten(str(error))}") from error
    if isinstance(value, msgspec.Raw):  # msgspec copies it unchecked
        _require_json(data)
    if len(data) > MAX_BYTES:
        raise PayloadTooLarge(
            f"the payload must have at most {MAX_BYTES:,} bytes, got {len(data):,}: "
            "store the data elsewhere and pass a reference"
        )
    # A cheap test for what needs a closer look: NaN (encoded as null), naive datetimes, colliding keys, great depth.
    if (
        b"null" in data
        or _find_time_without_offset(data) is not None
        or _find_number_as_key(data) is not None
        or (len(data) > 2 * MAX_DEPTH and _is_too_deep(data))
    ):
        _inspect(value)
    return data


def checker(wanted: Any) -> Callable[[Any], None]:
    """Return a function that raises msgspec.ValidationError for a value that is not of the wanted type.

    The JSON alone does not show this: bytes are encoded as a JSON string and would pass as a str.
    """
    from datetime import date, time, timedelta
    from decimal import Decimal
    from uuid import UUID

    keep_as_is = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)

    def check(value: Any) -> None:
        msgspec.convert(value, wanted, builtin_types=keep_as_is, dec_hook=_check_hook)

    return check


def _require_decodable(wanted: Any) -> None:
    """Raise TypeError if the type, or a type inside it, cannot be decoded from JSON."""
    pending = [msgspec.inspect.type_info(wanted)]
    seen: list[Any] = []
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.append(one)
        if isinstance(one, msgspec.inspect.CustomType) and not (
            isinstance(one.cls, type)
            and (one.cls is object or issubclass(one.cls, _pure_path()) or hasattr(one.cls, "model_validate"))
        ):
            raise TypeError(f"values of type {getattr(one.cls, '__qualname__', one.cls)} cannot be read from JSON")
        pending.extend(_inner_types(one))


def _inner_types(one: Any) -> list[Any]:
    inner: list[Any] = []
    for name in one.__struct_fields__ if isinstance(one, msgspec.Struct) else ():
        value = getattr(one, name)
        inner += [
            one_type
            for one_type in (value if isinstance(value, tuple) else (value,))
            if isinstance(one_type, (msgspec.inspect.Type, msgspec.inspect.Field))
        ]
    return inner


def encode_result(value: Any) -> bytes:
    """Encode the result of a job. Errors say "result" instead of "payload"."""
    try:
        return encode(value)
    except InvalidPayload as error:
        raise type(error)(str(error).replace("payload", "result")) from error.__cause__


def decoder(wanted: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON to the wanted type.

    It raises msgspec.DecodeError or msgspec.ValidationError.
    """
    if wanted is not Any:
        _require_decodable(wanted)
    decode = msgspec.json.Decoder(wanted, dec_hook=_decode_hook).decode

    def limited(data: bytes) -> Any:
        if len(data) > MAX_BYTES:  # stored by plain SQL
            raise msgspec.DecodeError(f"the payload must have at most {MAX_BYTES:,} bytes, got {len(data):,}")
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
    """Return whether the JSON is nested deeper than MAX_DEPTH.

    msgspec's own limit depends on the Python version.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    left = b"".join(_outside_strings(data)).translate(_TO_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):  # each pass removes the innermost level
        if not left or _TOO_DEEP in left:
            return bool(left)
        left = left.replace(b"[]", b"")
    return b"[]" in left or _TOO_DEEP in left


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield the parts of the JSON outside strings, in pieces, since it may be large. Linear time for any input."""
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    inside_string = 0
    for start in range(0, len(data), PIECE_BYTES):
        parts = data[start : start + PIECE_BYTES].split(b'"')
        yield b"".join(parts[inside_string::2])
        inside_string = (inside_string + len(parts) - 1) % 2


def is_json(data: bytes) -> bool:
    try:
        _decode_any(data)
    except msgspec.DecodeError:
        return False
    return True


def _require_json(data: bytes) -> None:
    if not is_json(data):
        raise InvalidPayload("the payload is a msgspec.Raw that is not valid JSON, or not UTF-8")


def _inspect(value: Any) -> None:
    """Walk the value level by level and raise InvalidPayload for anything that JSON would lose."""
    level = [msgspec.to_builtins(value, enc_hook=_inspect_hook, builtin_types=(datetime,))]
    depth = 0
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list, tuple)):
                if depth > MAX_DEPTH:
                    raise InvalidPayload(f"the payload is nested deeper than {MAX_DEPTH} levels: flatten it")
                below.extend(item)  # the keys, if it is a dict
                if isinstance(item, dict):
                    _refuse_colliding_keys(item)
                    below.extend(item.values())
            else:
                _refuse_lossy(item)
        level = below


def _inspect_hook(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else _encode_hook(value)


def _refuse_colliding_keys(item: dict[Any, Any]) -> None:
    if len({str(key) for key in item}) < len(item):
        raise InvalidPayload("two keys of the payload are the same in JSON, such as 1 and '1': use distinct strings")


def _refuse_lossy(item: Any) -> None:
    if isinstance(item, float) and not math.isfinite(item):
        raise InvalidPayload(f"the payload holds {item}, which JSON cannot represent: pass None or a str")
    if isinstance(item, datetime) and item.utcoffset() is None:
        raise InvalidPayload(
            f"the payload holds the naive datetime {item.isoformat()}, which is ambiguous "
            "on another machine: give it a time zone, such as datetime.now(timezone.utc)"
        )


_decode_any = decoder(Any)
