"""Arguments of every supported type are stored as JSON and come back in the same type."""

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import Context, Holdfast
from holdfast.app.signature import Signature
from holdfast.codec import encode
from holdfast.errors import InvalidArguments
from holdfast.model.job import Claimed

Claim = Callable[..., Claimed]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


class Address(msgspec.Struct):
    street: str
    since: datetime
    point: Point | None = None


class Customer(pydantic.BaseModel):
    name: str
    born: date
    addresses: list[str] = []


class Options(TypedDict, total=False):
    colour: Colour
    count: int


class Pair(NamedTuple):
    left: int
    right: str


SUMMER = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
ELSEWHERE = datetime(2026, 7, 1, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))

VALUES: list[tuple[Any, Any]] = [
    (int, 2**63 - 1),
    (float, 0.1),
    (bool, True),
    (str, "Žofie\n\t\0🪸"),
    (datetime, SUMMER),
    (datetime, ELSEWHERE),
    (date, date(2026, 2, 28)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta(days=-1, microseconds=5)),
    (uuid.UUID, uuid.UUID("12345678-1234-5678-1234-567812345678")),
    (Decimal, Decimal("123456789.000000000000000000001")),
    (bytes, b"\x00\xff\x80 raw"),
    (Path, Path("/srv/data/ünï code.txt")),
    (PurePosixPath, PurePosixPath("relative/path")),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Point, Point(1, 2, ["a"])),
    (Address, Address("Reef 1", SUMMER, Point(3))),
    (Customer, Customer(name="Ada", born=date(1815, 12, 10), addresses=["London"])),
    (Options, {"colour": Colour.RED, "count": 3}),
    (Pair, Pair(1, "r")),
    (Literal["fast", "slow"], "slow"),
    (Optional[int], None),  # noqa: UP045  the old spelling has to work too
    (int | None, 5),
    (Path | None, None),
    (Path | None, Path("x")),
    (Customer | None, None),
    (Point | None, Point(1)),
    (list[list[int]], [[1, 2], [], [3]]),
    (list[datetime | None], [SUMMER, None]),
    (dict[str, list[Point]], {"a": [Point(1)], "b": []}),
    (dict[int, str], {1: "one"}),
    (tuple[int, str], (1, "x")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (list[Customer], [Customer(name="Ada", born=date(1815, 12, 10))]),
    (dict[str, Path], {"home": Path("/home")}),
    (Annotated[int, msgspec.Meta(ge=0)], 0),
    (Any, {"anything": [1, None, "x"]}),
    (None, None),
]
NAMES = [str(kind) for kind, _ in VALUES]


def make_task(app: Holdfast, kind: Any) -> Any:
    def work(value: Any) -> None: ...

    work.__annotations__ = {"value": kind, "return": None}
    return app.task(work)


def claimed_value(app: Holdfast, claim: Claim, name: str = "value") -> Any:
    """The argument as a worker would pass it to the function."""
    args, kwargs = app.tasks["work"].signature.decode(claim("work").args)
    assert args == ()
    return kwargs[name]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=NAMES)
def test_an_argument_comes_back_as_it_went(app: Holdfast, claim: Claim, kind: Any, value: Any) -> None:
    make_task(app, kind).enqueue(value)
    found = claimed_value(app, claim)
    assert (type(found), found) == (type(value), value)


def signature(**annotations: Any) -> Signature:
    """That of a task whose parameter `value` may be left out."""

    def work(value: Any = None) -> Any: ...

    work.__annotations__ = annotations
    return Signature(work, "work")


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=NAMES)
def test_an_argument_with_a_default_comes_back_as_it_went(kind: Any, value: Any) -> None:
    one = signature(value=kind)
    args, kwargs = one.decode(one.encode((value,), {}).encode())
    assert (args, type(kwargs["value"]), kwargs) == ((), type(value), {"value": value})


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=NAMES)
def test_a_result_comes_back_in_the_annotated_type(kind: Any, value: Any) -> None:
    found = signature(**{"return": kind}).decode_result(encode(value))
    assert (type(found), found) == (type(value), value)


WRONG: list[tuple[Any, Any]] = [
    (int, "1"),
    (int, 1.5),
    (int, True),
    (str, 1),
    (str, None),
    (float, "0.1"),
    (bool, 1),
    (datetime, 12),
    (datetime, "yesterday"),
    (uuid.UUID, "no uuid"),
    (Decimal, "eleven"),
    (bytes, 5),
    (Path, 5),
    (Colour, "green"),
    (Level, 3),
    (Point, {"y": 1}),
    (Address, Point(1)),
    (Customer, {"name": "Ada", "born": "never"}),
    (Options, {"count": "three"}),
    (Literal["fast", "slow"], "medium"),
    (int | None, "x"),
    (list[list[int]], [[1], ["2"]]),
    (dict[str, int], {"a": None}),
    (tuple[int, str], (1,)),
    (Annotated[int, msgspec.Meta(ge=0)], -1),
]


@pytest.mark.parametrize(("kind", "value"), WRONG, ids=[str(kind) for kind, _ in WRONG])
def test_an_argument_of_the_wrong_type_is_refused_at_enqueue(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidArguments, match="work"):
        signature(value=kind).encode((value,), {})


def test_an_argument_that_was_left_out_is_left_to_the_function(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(to: str, at: Path = Path("here"), *, often: int = 3) -> None: ...

    assert app.jobs.get(work.enqueue("ada").id).args == {"to": "ada"}
    assert work.signature.decode(claim("work").args) == ((), {"to": "ada"})


def test_none_that_was_passed_is_not_the_same_as_left_out(app: Holdfast) -> None:
    @app.task
    def work(note: str | None = "default") -> None: ...

    assert app.jobs.get(work.enqueue(None).id).args == {"note": None}


def test_an_annotation_may_be_text(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(value: "Point | None") -> None: ...

    work.enqueue(Point(1))
    assert claimed_value(app, claim) == Point(1)


def test_a_parameter_without_annotation_takes_any_json_value(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(value) -> None: ...  # type: ignore[no-untyped-def]

    work.enqueue([1, {"a": None}])
    assert claimed_value(app, claim) == [1, {"a": None}]


def test_positional_only_parameters_are_passed_by_position(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(first: int, /, second: int) -> tuple[int, int]:
        return first, second

    work.enqueue(1, second=2)
    args, kwargs = work.signature.decode(claim("work").args)
    assert work(*args, **kwargs) == (1, 2)


def test_a_positional_only_argument_that_was_left_out_does_not_shift_the_next(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(first: int = 1, second: int = 2, /) -> tuple[int, int]:
        return first, second

    try:
        work.enqueue_many([{"second": 5}])
    except InvalidArguments:
        return  # to refuse it is right as well
    args, kwargs = work.signature.decode(claim("work").args)
    assert work(*args, **kwargs) == (1, 5)


def test_a_context_is_filled_in_for_the_worker_and_not_decoded(app: Holdfast, claim: Claim) -> None:
    @app.task
    def work(ctx: Context, value: int) -> tuple[int | None, int]:
        return ctx.job_id, value

    job = work.enqueue(5)
    args, kwargs = work.signature.decode(claim("work").args)
    call = work.signature.with_context(Context(job_id=job.id), args, kwargs)
    assert work.function(*call.args, **call.kwargs) == (job.id, 5)


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"value": "one"}', b'{"other": 1}', b'{"value": 1, "x": 1}'])
def test_stored_arguments_that_no_longer_fit_raise_a_decode_error(damaged: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        signature(value=int).decode(damaged)
