"""Read SQL statements from files, name the columns of new jobs, and build values from rows, also from damaged ones.

In a file, each statement follows a line `-- name: …`.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from ..model.job import NewJob, Status

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class Statements:
    """The named statements in a folder, as attributes, with the table prefix filled in."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.__dict__.update(_named(folder, prefix))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


@lru_cache(maxsize=4)  # a program opens several databases with one prefix, or one database several times
def _named(folder: Path, prefix: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for file in sorted(folder.glob("*.sql")):
        head, *blocks = _NAME.split(file.read_text(encoding="utf-8"))
        assert not [line for line in head.splitlines() if line and not line.startswith("--")], file
        for name, text in zip(blocks[::2], blocks[1::2], strict=True):
            assert name not in named, f"{name} is defined twice"
            named[name] = with_prefix(text, prefix)
    return named


def with_prefix(text: str, prefix: str) -> str:
    """Strip comments and blank lines, and replace `{p}` by the prefix, which was validated before."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";").replace("{p}", prefix)


def as_json(values: Any) -> str:
    """Encode a bound value that a statement reads with json_each."""
    return msgspec.json.encode(values).decode()


# Fields of NewJob that are not stored as they are. Every other field is a column of the same name.
_OTHER_FIELDS = (
    "args", "delay", "run_at", "expires", "expires_at", "key_window", "on_conflict", "actor", "links",
)  # fmt: skip
_PLAIN_COLUMNS = tuple(field for field in NewJob.__struct_fields__ if field not in _OTHER_FIELDS)
NEW_JOB_COLUMNS = (
    "args", *_PLAIN_COLUMNS, "status", "run_at", "created_at", "actor", "on_blocker_failure", "batch_id", "external",
    "expires_at", "chain_id", "chain_index",
)  # fmt: skip
NEW_JOB_ROW = f"({', '.join('?' * len(NEW_JOB_COLUMNS))})"
_plain_values = attrgetter(*_PLAIN_COLUMNS)


def insert_statement(text: str) -> str:
    """Return the statement with the columns and parameter marks filled in."""
    marks = ", ".join("?" * len(NEW_JOB_COLUMNS))
    text = text.replace("{columns}", ", ".join(NEW_JOB_COLUMNS)).replace("{values}", marks)
    return text.replace("{other_values}", marks.removeprefix("?, "))


def new_job_values(
    job: NewJob, now: int, actor: str, chain_id: int | None = None, chain_index: int = 0, batch_id: int | None = None
) -> tuple[Any, ...]:
    """Return the values in the order of NEW_JOB_COLUMNS. chain_id, chain_index, batch_id: of a continuation."""
    links = job.links
    policy, external = None, False
    if links is not None:
        policy = None if links.on_blocker_failure == "hold" else links.on_blocker_failure
        external = links.external
        batch_id = links.batch_id if batch_id is None else batch_id
    return (
        job.args,
        *_plain_values(job),
        job.first_status(now)._value_,  # `.value` is a call of Python code
        job.due(now),
        now,
        job.actor or actor,
        policy,
        batch_id,
        external,
        job.expires_at if job.expires is None else now + job.expires,
        chain_id,
        chain_index,
    )


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
    Status: ((str,), text, ""),
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
