"""What JSON cannot say, or what is too much, is refused before anything is stored."""

import dataclasses
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from holdfast import Holdfast, codec
from holdfast.codec import MAX_BYTES, MAX_DEPTH
from holdfast.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from support.refusals import refused, stored
from support.running_worker import PATIENCE_SECONDS

MEBIBYTE = 1024 * 1024
NAIVE = datetime(2030, 1, 1, 12, 30)  # noqa: DTZ001


class Reading(msgspec.Struct):
    value: float | None = None
    at: datetime | None = None


@dataclasses.dataclass
class Sample:
    values: list[float]


class Widget:
    """Nothing that JSON knows."""


class Nowhere(tzinfo):
    """A time zone that does not know its offset: a datetime with it is as naive as one without."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def nested(levels: int, core: Any = None) -> Any:
    """So many lists in one another; the innermost is empty, or holds the core."""
    value: Any = [] if core is None else [core]
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_dicts(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def endless_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def endless_dict() -> Any:
    value: dict[str, Any] = {}
    value["me"] = {"again": value}
    return value


BAD_BODIES: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "nan"),
    "infinity": (math.inf, "inf"),
    "minus infinity": (-math.inf, "inf"),
    "NaN in a list": ([1.0, math.nan], "nan"),
    "NaN far inside": ({"a": [{"b": (1, {"c": math.nan})}]}, "nan"),
    "NaN in a Struct": (Reading(math.nan), "nan"),
    "infinity in a dataclass": (Sample([1.0, math.inf]), "inf"),
    "a lone surrogate": ("\ud800", "surrogate"),
    "a lone surrogate inside": ({"a": ["fine", "not \udfff fine"]}, "surrogate"),
    "a lone surrogate as a key": ({"\udc80": 1}, "surrogate"),
    "a naive datetime": (NAIVE, "naive"),
    "a naive datetime inside": ({"at": [NAIVE]}, "naive"),
    "a naive datetime in a Struct": (Reading(at=NAIVE), "naive"),
    "a naive datetime with microseconds": (NAIVE.replace(microsecond=1), "naive"),
    "a naive datetime as a key": ({NAIVE: 1}, "naive"),
    "a datetime whose zone has no offset": (NAIVE.replace(tzinfo=Nowhere()), "naive"),
    "one list too deep, and empty": (nested(MAX_DEPTH + 1), "64"),
    "one list too deep, with a number": (nested(MAX_DEPTH + 1, 1), "64"),
    "one object too deep": (nested_dicts(MAX_DEPTH + 1), "64"),
    "one tuple too deep": ((nested(MAX_DEPTH, 1),), "64"),
    "half the interpreter's stack": (nested(500), "64"),
    "far deeper than the interpreter's stack": (nested(100_000), "64"),
    "a list that holds itself": (endless_list(), "refers to itself"),
    "a dict that holds itself": (endless_dict(), "refers to itself"),
    "an object": (object(), "object"),
    "a function": (nested, "function"),
    "a generator": ((i for i in "ab"), "generator"),
    "a complex number": (1j, "complex"),
    "a class": (Reading, "type"),
    "an exception": (ValueError("x"), "ValueError"),
    "a key that is None": ({None: 1}, "key"),
    "a key that is a tuple": ({(1, 2): 1}, "key"),
    "two keys that are one in JSON": ({1: "a", "1": "b"}, "key"),
    "an integer of 5000 digits": (-(10**5000), "integer"),
    "raw text that is no JSON": (msgspec.Raw(b"{nonsense"), "json"),
    "raw bytes that are not UTF-8": (msgspec.Raw(b'"\xff\xfe"'), "utf-8"),
    "raw JSON that is too deep": ([msgspec.Raw(b"[" * 100 + b"]" * 100)], "json"),
}

Way = Callable[[Holdfast, Any], object]


def by_send(app: Holdfast, body: Any) -> None:
    app.queue("inbox").send(body)


def by_send_many(app: Holdfast, body: Any) -> None:
    app.queue("inbox").send_many(["fine", "fine too", body])


def by_send_in_a_transaction(app: Holdfast, body: Any) -> None:
    with app.transaction() as tx:
        app.queue("inbox").send(body, conn=tx)


def by_enqueue(app: Holdfast, body: Any) -> None:
    @app.task
    def anything(value): ...  # type: ignore[no-untyped-def]

    anything.enqueue(body)


def by_enqueue_many(app: Holdfast, body: Any) -> None:
    @app.task
    def anything(value): ...  # type: ignore[no-untyped-def]

    anything.enqueue_many([{"value": "fine"}, {"value": body}])


WAYS = [by_send, by_send_many, by_send_in_a_transaction, by_enqueue, by_enqueue_many]


@pytest.mark.parametrize("name", BAD_BODIES)
def test_what_json_cannot_say_is_refused(app: Holdfast, name: str) -> None:
    body, word = BAD_BODIES[name]
    with refused(app, InvalidPayload, word):
        app.queue("inbox").send(body)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_refused_on_every_way_in(app: Holdfast, way: Way) -> None:
    for name in ("NaN in a Struct", "a lone surrogate inside", "a naive datetime inside", "an object"):
        body, word = BAD_BODIES[name]
        with refused(app, InvalidPayload, word):
            way(app, body)
    with refused(app, InvalidPayload, "64"):
        way(app, nested(MAX_DEPTH + 1, 1))
    with refused(app, PayloadTooLarge, "67,108,864"):
        way(app, "x" * MAX_BYTES)


@pytest.fixture
def cap(monkeypatch: pytest.MonkeyPatch) -> int:
    """A smaller one: what it does is the same, and quicker."""
    monkeypatch.setattr(codec, "MAX_BYTES", MEBIBYTE)
    return MEBIBYTE


@pytest.mark.parametrize("body", ["x" * MEBIBYTE, "é" * (MEBIBYTE // 2), ["x" * 1000] * 1100, "\x00" * 200_000])
def test_a_payload_over_the_cap_is_refused(app: Holdfast, cap: int, body: Any) -> None:
    with refused(app, PayloadTooLarge, f"{cap:,}", "reference"):
        app.queue("inbox").send(body)


def test_a_payload_of_exactly_the_cap_is_stored(app: Holdfast, cap: int) -> None:
    inbox = app.queue("inbox")
    inbox.send("x" * (cap - 2))
    message = inbox.receive()
    assert message is not None and len(message.body) == cap - 2


@pytest.mark.parametrize("body", [nested(MAX_DEPTH), nested(MAX_DEPTH, 1), nested_dicts(MAX_DEPTH), "[{" * 5000])
def test_a_payload_of_exactly_64_levels_is_stored(app: Holdfast, body: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send(body)
    inbox.send_many([body])
    assert [message.body for message in inbox.receive_many(2)] == [body, body]


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "null",
        "T12:00:00",
        'say "T12:00:00"',
        [None] * 100,
        {"": None},
        -0.0,
        5e-324,
        1.7976931348623157e308,
        2**63 - 1,
        -(2**63),
        2**64,
        -(10**30),
        True,
        '\x00\x01\x7f\u2028\ufeff\uffff𝄞 " \\ / \b\f\n\r\t',
        {"__proto__": 1, "$ref": "#", "constructor": {}},
    ],
)
def test_whatever_json_can_say_comes_back_as_it_was(app: Holdfast, body: Any) -> None:
    inbox = app.queue("inbox")
    inbox.send(body)
    inbox.send_many([body])
    received = inbox.receive_many(2)
    assert [message.body for message in received] == [body, body]
    assert [type(message.body) for message in received] == [type(body), type(body)]


def test_times_and_numbers_that_look_like_bad_ones_are_stored(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send({"day": date(2030, 1, 1), "hour": time(12, 30), "utc": datetime(2030, 1, 1, tzinfo=UTC)})
    inbox.send({"none": None, "decimal": Decimal("NaN"), "id": UUID(int=0)})
    assert [message.body for message in inbox.receive_many(2)] == [
        {"day": "2030-01-01", "hour": "12:30:00", "utc": "2030-01-01T00:00:00Z"},
        {"none": None, "decimal": "NaN", "id": "00000000-0000-0000-0000-000000000000"},
    ]


@pytest.mark.parametrize("place", [0, 999, 1000, 2499])
def test_one_bad_body_among_thousands_keeps_all_of_them_out(app: Holdfast, place: int) -> None:
    bodies: list[Any] = [0] * 2500
    bodies[place] = math.nan
    with refused(app, InvalidPayload, "nan"):
        app.queue("inbox").send_many(bodies)
    assert len(app.queue("inbox").send_many([1, 2])) == 2


def test_one_bad_body_among_thousands_leaves_the_users_transaction_usable(app: Holdfast, url: str) -> None:
    connection = sqlite3.connect(url)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.execute("INSERT INTO orders VALUES (1)")
    with refused(app, InvalidPayload, "nan"):
        app.queue("inbox").send_many([*[0] * 1500, math.nan], conn=connection)
    app.queue("inbox").send("good", conn=connection)
    connection.commit()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert len(stored(app)) == 1
    connection.close()


def test_bodies_that_stop_coming_keep_all_of_them_out(app: Holdfast) -> None:
    def bodies() -> Any:
        yield from range(1500)
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match="the source broke"):
        app.queue("inbox").send_many(bodies())
    assert stored(app) == []


@pytest.mark.parametrize("body", ["text", {"value": "text"}, {"value": 1.5, "at": "yesterday"}, None, [1.5]])
def test_a_body_of_the_wrong_type_is_refused_by_a_typed_queue(app: Holdfast, body: Any) -> None:
    readings = app.queue("readings", type=Reading)
    with refused(app, InvalidInput, "readings", "type"):
        readings.send(body)
    with refused(app, InvalidInput, "readings", "type"):
        readings.send_many([Reading(1.5), body])


@pytest.mark.parametrize("body", [b"bytes", datetime(2030, 1, 1, tzinfo=UTC)])
def test_a_text_queue_takes_no_value_that_only_becomes_text_on_the_way(app: Holdfast, body: Any) -> None:
    with refused(app, InvalidInput, "type"):
        app.queue("texts", type=str).send(body)


@pytest.mark.parametrize("wanted", [Widget, lambda: None, "Reading", 5])
def test_a_type_that_cannot_be_read_from_json_is_refused_with_the_queue(app: Holdfast, wanted: Any) -> None:
    with refused(app, InvalidInput, "type"):
        app.queue("things", type=wanted)


SENDS_LARGE_BODIES = """
import resource, sys
from holdfast import Holdfast
app = Holdfast(sys.argv[1], durability="normal")
body = '"' * 500_000  # twice as much in JSON, and allowed
app.queue("inbox").send(body)
resource.setrlimit(resource.RLIMIT_AS, (400 * 1024 * 1024,) * 2)
print(len(app.queue("inbox").send_many(body for _ in range(100))))
"""


def test_many_large_bodies_are_sent_in_bounded_memory(url: str) -> None:
    """A batch is bounded by its bytes: a thousand bodies of a mebibyte are more than SQLite takes in one value."""
    command = [sys.executable, "-c", SENDS_LARGE_BODIES, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert (done.stdout, done.stderr[-500:]) == ("100\n", "")
