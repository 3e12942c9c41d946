"""Open connections, and run the store's statements on them."""

import re
import select
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from ...errors import CannotOpen, InvalidInput, StoreError
from .errors import cannot_connect

Driver = psycopg.Connection[Any]
AsyncDriver = psycopg.AsyncConnection[Any]
Wait = Callable[[Coroutine[Any, Any, Any]], Any]
OLDEST_VERSION = 140000
# Detect a lost server within seconds, also while nothing is sent.
KEEPALIVES = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
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


class Target(NamedTuple):
    """A database by its URL."""

    conninfo: str
    shown: str
    """For messages: without a password."""


def target(url: str) -> Target:
    try:
        parts = conninfo_to_dict(url)
        conninfo = make_conninfo(**(KEEPALIVES | {"application_name": "holdfast"} | parts))  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        told = str(error).strip().splitlines()[0]
        raise InvalidInput(f"the URL of the database cannot be read: {_without_password(told)}") from None
    host = str(parts.get("host") or parts.get("hostaddr") or "")
    port = f":{parts['port']}" if parts.get("port") else ""
    name = parts.get("dbname") or parts.get("user") or ""
    if host.startswith("/"):
        return Target(conninfo, f"postgresql://{port}/{name}?host={host}")
    return Target(conninfo, f"postgresql://{host}{port}/{name}")


def _without_password(text: str) -> str:
    return re.sub(r"//[^@\s\"]*@", "//…@", text)


def connect(where: Target, settings: Mapping[str, str], kind: type[Driver] = psycopg.Connection) -> Driver:
    """Open a connection in autocommit mode: transactions are begun explicitly."""
    try:
        driver = kind.connect(where.conninfo, autocommit=True)
    except (psycopg.Error, OSError) as error:
        raise cannot_connect(error, where.shown) from None
    try:
        if driver.info.server_version < OLDEST_VERSION:
            raise CannotOpen(
                f"{where.shown} is PostgreSQL {driver.info.server_version // 10_000}, Holdfast needs 14 or newer: "
                "upgrade the server"
            )
        adapt(driver)
        with driver.cursor() as cursor:
            for name, value in settings.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
    except psycopg.Error as error:
        driver.close()
        raise cannot_connect(error, where.shown) from None
    except StoreError:
        driver.close()
        raise
    return driver


def wait_readable(descriptors: Iterable[int], seconds: float) -> bool:
    """Wait until one of these can be read. Unlike select.select, it takes any number of descriptors."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def is_usable(driver: Driver) -> bool:
    """Return whether an idle connection still works, as far as this end knows: the server may have ended it."""
    if driver.closed:
        return False
    try:
        while wait_readable([driver.fileno()], 0):
            driver.pgconn.consume_input()
            if driver.pgconn.is_busy() or driver.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                return False
            if driver.pgconn.notifies() is None and driver.pgconn.status != pq.ConnStatus.OK:
                return False
    except (psycopg.Error, OSError):
        return False
    return True


def in_transaction(driver: Driver | AsyncDriver) -> bool:
    return driver.info.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)


def rollback(driver: Driver) -> None:
    """Roll back what is open, if the connection still works."""
    if not driver.closed and driver.info.transaction_status != pq.TransactionStatus.IDLE:
        try:
            driver.execute("ROLLBACK")
        except psycopg.Error:
            driver.close()
