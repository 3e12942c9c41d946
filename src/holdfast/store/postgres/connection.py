"""Open connections, and run the store's statements on them."""

import os
import re
import select
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from ...errors import CannotOpen, InvalidInput
from .errors import cannot_connect

Driver = psycopg.Connection[Any]
AsyncDriver = psycopg.AsyncConnection[Any]
Wait = Callable[[Coroutine[Any, Any, Any]], Any]
OLDEST_VERSION = 140000
# Detect a lost server within seconds, also while nothing is sent.
KEEPALIVES = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# So does the server, which else holds the locks of a machine that is gone for two hours.
SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
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
    hosts: int

    def __repr__(self) -> str:
        return f"Target({self.shown})"


def target(url: str) -> Target:
    """Read a URL. With several hosts, connections go to the one that takes writes."""
    try:
        parts = conninfo_to_dict(url)
        names = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
        ports = str(parts.get("port") or "").split(",")
        writable = {"target_session_attrs": "read-write"} if len(names) > 1 else {}
        conninfo = make_conninfo(**(KEEPALIVES | writable | {"application_name": "holdfast"} | parts))  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        told = "" if _may_have_password(url) else f": {str(error).strip().splitlines()[0]}"
        raise InvalidInput(
            f"the URL of the database cannot be read{told}: write postgresql://role:password@host:port/database, "
            "with special characters of the password as %40 for @, %2F for /, %3F for ? and %23 for #"
        ) from None
    name = str(parts.get("dbname") or parts.get("user") or "")
    if "@" in name or any("@" in one for one in names) or not all(one.isdigit() or not one for one in ports):
        raise InvalidInput(
            "the URL of the database cannot be read: the port must be a number. Write special characters of the "
            "password as %40 for @, %2F for /, %3F for ? and %23 for #"
        )
    return Target(conninfo, _shown(names, ports, name), len(names))


def _shown(names: list[str], ports: list[str], database: str) -> str:
    """Return a URL without role and password."""
    if len(ports) < len(names):
        ports = ports * len(names) if len(ports) == 1 else ports + [""] * (len(names) - len(ports))
    folders = "?host=" + ",".join(names) if any(one.startswith("/") for one in names) else ""
    pairs = zip(["" for _ in names] if folders else names, ports, strict=False)
    hosts = ",".join(f"{one}:{port}" if port else one for one, port in pairs)
    return f"postgresql://{hosts}/{database}{folders}"


def _may_have_password(url: str) -> bool:
    return "@" in url or "password" in url.lower()


class ServerSession(NamedTuple):
    """What a connection tells about the server when it is opened."""

    is_pooled: bool
    """Whether a pooler may give each transaction to another session of the server."""
    incarnation: int
    """Changes when the server starts, recovers from a crash, or is promoted: sessions and locks were lost then."""
    is_flushed: bool
    """Whether a commit is flushed before it returns, by the settings of the role, the database or the server."""
    is_standby: bool


def connect(where: Target, kind: type[Driver] = psycopg.Connection) -> Driver:
    """Open a connection in autocommit mode: transactions are begun explicitly."""
    try:
        driver = kind.connect(where.conninfo, autocommit=True)
    except (psycopg.Error, OSError, UnicodeError) as error:
        raise cannot_connect(error, where.shown) from None
    if driver.info.server_version < OLDEST_VERSION:
        version = driver.info.server_version
        driver.close()
        raise CannotOpen(
            f"{where.shown} is PostgreSQL {version // 10_000}, Holdfast needs 14 or newer: upgrade the server"
        )
    adapt(driver)
    return driver


def session_of(driver: Driver, statement: str) -> ServerSession:
    """Ask a new connection what session it has. statement: `session`, of the store's."""
    pid, *rest = Handle(driver).execute(statement).fetchone()
    return ServerSession(pid != driver.info.backend_pid, *rest)


def prepare_session(driver: Driver, session: ServerSession, settings: dict[str, str]) -> None:
    """Set what holds for the whole session. Behind a pooler, which shares it with others, nothing is set."""
    if session.is_pooled:
        driver.prepare_threshold = None
        return
    if not session.is_flushed:
        settings = {**settings, "synchronous_commit": "on"}
    pairs = (SERVER_KEEPALIVES | settings).items()
    calls = sql.SQL(", ").join([sql.SQL("set_config(%s, %s, false)")] * len(pairs))
    driver.execute(sql.SQL("SELECT {}").format(calls), [text for pair in pairs for text in pair])


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


def abandon(driver: Driver) -> None:
    """In a forked child: let go of a connection of the parent, which goes on using it.

    The descriptor is replaced, without a word to the server. So the session ends with the parent, although the child
    lives on, and what is sent by mistake reaches nobody. The object itself must never be finalised: see `leak`.
    """
    with suppress(psycopg.Error, OSError):
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, driver.pgconn.socket, inheritable=False)
        os.close(nowhere)
