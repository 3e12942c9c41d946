"""Payloads are readable JSON, and values that JSON would lose or that could not be decoded are refused."""

import enum
import sys
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import codec
from holdfast.codec import MAX_BYTES, MAX_DEPTH, decoder, encode
from holdfast.errors import InvalidPayload, PayloadTooLarge

MEBIBYTE = 1024 * 1024


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    at: datetime | None = None


class Box(msgspec.Struct):
    point: Point


class Model(pydantic.BaseModel):
    x: float = 0
    at: datetime | None = None


NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("grüße 🪸", '"grüße 🪸"'),
        ({"to": "ada", "n": [1, 2.5, True]}, '{"to":"ada","n":[1,2.5,true]}'),
        (NOON, '"2026-07-01T12:00:00Z"'),
        (date(2026, 7, 1), '"2026-07-01"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        (b"\x00\xff", '"AP8="'),
        (Path("/srv/x"), '"/srv/x"'),
        (Colour.RED, '"red"'),
        (Box(Point(1.5)), '{"point":{"x":1.5,"at":null}}'),
        (Model(x=2), '{"x":2.0,"at":null}'),
        ((1, (2,)), "[1,[2]]"),
        (OrderedDict(a=1), '{"a":1}'),
        ({1: "one"}, '{"1":"one"}'),
        ([Path("a"), {"m": Model()}], '["a",{"m":{"x":0.0,"at":null}}]'),
    ],
    ids=repr,
)
def test_a_value_is_written_as_readable_json(value: Any, text: str) -> None:
    assert encode(value).decode() == text


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        INF,
        -INF,
        [NAN],
        {"a": {"b": [1, INF]}},
        Point(NAN),
        Box(Point(INF)),
        Model(x=NAN),
        (None, NAN),
        {"x": {NAN}},
    ],
    ids=repr,
)
def test_values_that_json_cannot_represent_are_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match="JSON cannot represent"):
        encode(value)


NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001


@pytest.mark.parametrize(
    "value",
    [NAIVE, [NAIVE], {"a": NAIVE}, Point(1, NAIVE), Box(Point(1, NAIVE)), Model(at=NAIVE), {NAIVE: 1}],
    ids=repr,
)
def test_a_datetime_without_time_zone_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match="time zone"):
        encode(value)


def test_a_str_that_looks_like_a_naive_datetime_is_accepted() -> None:
    assert encode({"at": "2026-07-01T12:00:00"}) == b'{"at":"2026-07-01T12:00:00"}'


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, ["ok", "\udcff"], Point, Path("\udcff")], ids=repr)
def test_invalid_utf8_and_values_that_are_not_data_are_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode(value)


@pytest.mark.parametrize("value", [object(), lambda: 1, {1, object()}, 1j, deque([object()]), open])
def test_a_value_of_an_unknown_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload):
        encode(value)


def nested(depth: int, innermost: Any) -> Any:
    """So many lists around a value."""
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


def test_64_levels_are_accepted() -> None:
    assert MAX_DEPTH == 64
    assert encode(nested(64, 1))
    assert encode(nested(63, [])) and encode(nested(63, {}))


@pytest.mark.parametrize("value", [nested(65, 1), nested(64, []), nested(64, {}), nested(64, {"a": 1})], ids=len)
def test_65_levels_are_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload, match="deeper than 64"):
        encode(value)


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_extreme_depth_is_refused_without_a_crash(depth: int) -> None:
    with pytest.raises(InvalidPayload, match="nested deeper"):
        encode(nested(depth, 1))


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidPayload, match="nested deeper"):
        encode(value)


def test_a_wide_value_is_not_deep() -> None:
    assert encode([[[]] * 50] * 50)


def test_a_payload_of_just_64_mib_is_accepted() -> None:
    assert len(encode("x" * (MAX_BYTES - 2))) == MAX_BYTES == 64 * MEBIBYTE


@pytest.mark.parametrize("value", ["x" * (MEBIBYTE - 1), "ü" * (MEBIBYTE // 2), ["x" * 1024] * 1100], ids=len)
def test_a_larger_payload_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", MEBIBYTE)
    with pytest.raises(PayloadTooLarge, match="1,048,576"):
        encode(value)


@pytest.mark.parametrize(
    ("data", "too_deep"),
    [
        (b"[" * 10_000_000, True),
        (b"[" * 64 + b"]" * 64 + b"[[]" * 1_000_000, True),
        (b"[]," * 3_000_000, False),
        (b'["' + b'\\"' * 5_000_000, False),
        (b"[" + b"[[],[[[]]]]," * 1_000_000 + b"]", False),
        (b"[}" * 5_000_000, False),
        (b"]" * 10_000_000, False),
        (b'"' * 9_999_999, False),
        (b"[" * 64 + b'"' + b"[" * 9_000_000 + b'"' + b"]" * 64, False),
        (b'{"[[[":[' * 33 + b"]}" * 33, True),
        (b'{"[[[":[' * 32 + b"]}" * 32, False),
    ],
    ids=lambda value: value[:12].decode() if isinstance(value, bytes) else str(value),
)
def test_the_depth_of_ten_million_bytes_is_found_quickly(data: bytes, too_deep: bool) -> None:
    lines = []

    def trace(*_: object) -> Any:
        lines.append(None)
        return trace

    sys.settrace(trace)
    try:
        found = codec._is_too_deep(data)
    finally:
        sys.settrace(None)
    assert found is too_deep
    assert len(lines) < 5000, "Python looks at the bytes one by one, instead of many in one call"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**200])
def test_a_large_number_is_kept_exactly_or_refused(number: int) -> None:
    try:
        data = encode(number)
    except InvalidPayload:
        return
    assert decoder(Any)(data) == number


# --- back ---


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (Any, {"a": [1, None]}),
        (Point, Point(1.5, NOON)),
        (Box, Box(Point(2.0))),
        (Model, Model(x=3, at=NOON)),
        (list[Model], [Model()]),
        (Path, Path("x/y")),
        (dict[str, Path | None], {"a": Path("x"), "b": None}),
        (Colour, Colour.RED),
        (Decimal, Decimal("1.10")),
        (bytes, b"\x00\xff"),
        (uuid.UUID, uuid.UUID(int=5)),
    ],
    ids=[str(number) for number in range(11)],
)
def test_an_encoded_value_is_decoded_to_the_same_value(wanted: Any, value: Any) -> None:
    found = decoder(wanted)(encode(value))
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nope",
        b"NaN",
        b"Infinity",
        b"1 2",
        b'"\xff"',
        b"\xff\xfe",
        b"\x00",
        b'"\x00"',
        b"'single'",
        b"[1,]",
    ],
    ids=repr,
)
def test_invalid_json_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder(Any)(data)


def test_stored_json_that_is_too_large_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="at most"):
        decoder(Any)(b'"' + b"x" * MAX_BYTES + b'"')


@pytest.mark.parametrize("depth", [10_000, 500_000])
def test_stored_json_that_is_too_deep_is_a_decode_error(depth: int) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder(Any)(b"[" * depth + b"]" * depth)


@pytest.mark.parametrize("wanted", [Point, Model, Colour, int, list[int], Path])
def test_stored_json_of_another_type_is_a_validation_error(wanted: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder(wanted)(b'{"unexpected": true, "x": "text"}')
