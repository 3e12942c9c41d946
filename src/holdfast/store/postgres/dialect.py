"""Run the store's statements on connections of psycopg: placeholders, types, and the SQL of PostgreSQL."""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from ..statements import as_json

Driver = psycopg.Connection[Any]
AsyncDriver = psycopg.AsyncConnection[Any]
Wait = Callable[[Coroutine[Any, Any, Any]], Any]
_PLACEHOLDER = re.compile(r"%|\?(\d*)|(?<![:\w]):([a-z_]\w*)")


class _BoolAsInt(Int8Dumper):
    """Binds True as 1: flags are small integers in the tables."""

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


def adapt(context: Any) -> None:
    """Let values be bound with types that do not depend on the value, so that few statements are prepared."""
    context.adapters.register_dumper(int, Int8Dumper)
    context.adapters.register_dumper(bool, _BoolAsInt)
    context.adapters.register_dumper(str, StrDumper)


class Translated(NamedTuple):
    """A statement with the placeholders of psycopg."""

    text: str
    is_numbered: bool


@lru_cache(maxsize=2048)
def translated(statement: str) -> Translated:
    """Replace `?`, `?1` and `:name` by the placeholders of psycopg."""
    is_numbered = False

    def placeholder(match: "re.Match[str]") -> str:
        nonlocal is_numbered
        if match[0] == "%":
            return "%%"
        if match[2] is not None:
            return f"%({match[2]})s"
        if match[1]:
            is_numbered = True
            return f"%({match[1]})s"
        return "%s"

    text = _PLACEHOLDER.sub(placeholder, statement)
    return Translated(text, is_numbered)


class Handle:
    """Runs the statements of the store on a connection, whatever its own row factory and adapters are."""

    __slots__ = ("_is_own", "driver")

    def __init__(self, driver: Driver, *, is_own: bool = True) -> None:
        """is_own: the connection was opened by `connect`, and not by the caller."""
        self.driver, self._is_own = driver, is_own

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        text, is_numbered = translated(statement)
        if is_numbered and not isinstance(values, Mapping):
            values = {str(number): value for number, value in enumerate(values, 1)}
        cursor = psycopg.Cursor(self.driver, row_factory=tuple_row)
        if not self._is_own:
            adapt(cursor)
        return cursor.execute(text, values)

    def executemany(self, statement: str, many: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each of many values."""
        cursor = psycopg.Cursor(self.driver, row_factory=tuple_row)
        if not self._is_own:
            adapt(cursor)
        cursor.executemany(translated(statement).text, many)


class AwaitingHandle:
    """Runs the statements of the store on an asynchronous connection of the caller.

    The statements are the same. Each is awaited where the connection belongs: see `CallerConnection.wait`.
    """

    __slots__ = ("_wait", "driver")

    def __init__(self, driver: AsyncDriver, wait: Wait) -> None:
        self.driver, self._wait = driver, wait

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> "_Fetched":
        text, is_numbered = translated(statement)
        if is_numbered and not isinstance(values, Mapping):
            values = {str(number): value for number, value in enumerate(values, 1)}
        fetched: _Fetched = self._wait(self._execute(text, values))
        return fetched

    async def _execute(self, text: str, values: Sequence[Any] | Mapping[str, Any]) -> "_Fetched":
        cursor = psycopg.AsyncCursor(self.driver, row_factory=tuple_row)
        adapt(cursor)
        await cursor.execute(text, values)
        rows = await cursor.fetchall() if cursor.description is not None else []
        return _Fetched(rows, cursor.rowcount)


class _Fetched:
    """The result of a statement. Implements Result."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int) -> None:
        self._rows, self.rowcount = rows, rowcount

    def fetchone(self) -> Any:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows


class PostgresDialect:
    """Implements Dialect."""

    def __init__(self, tables: str) -> None:
        self._tables = tables

    def listed(self, name: str, kind: Literal["text", "integer"]) -> str:
        return f"SELECT value FROM {self._tables}each_{'id' if kind == 'integer' else 'text'}(:{name})"  # noqa: S608

    def element(self, row: str, index: int) -> str:
        return f"({row} ->> {index})"

    def same_task(self, value: str) -> str:
        return f"coalesce(task, '') = coalesce({value}, '')"  # as the indexes have it

    def like(self, value: str, name: str) -> str:
        return f"coalesce({value} LIKE :{name}, false)"

    def pattern(self, text: str) -> str:
        for special in ("\\", "%", "_"):
            text = text.replace(special, f"\\{special}")
        return text.replace("*", "%")

    def argument(self, name: str) -> str:
        return f"{self._tables}argument(args, :{name})"

    def path(self, names: list[str]) -> str:
        return as_json(names)

    def using(self, table: str, index: str) -> str:
        del index
        return table

    def encoded(self, column: str) -> str:
        return f"convert_to({column}, 'UTF8')"

    def with_rows(self, statement: str, rows: list[tuple[Any, ...]]) -> tuple[str, list[Any]]:
        return statement, [as_json(rows)]

    def inserted_id(self, cursor: Any) -> int:
        return int(cursor.fetchone()[0])

    def is_constraint_error(self, error: Exception) -> bool:
        return isinstance(error, psycopg.IntegrityError)
