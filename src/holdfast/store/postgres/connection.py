"""Read the URL of a server, open connections to it, and let go of them."""

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import CannotOpen, InvalidInput
from .dialect import AsyncDriver, Driver, Handle, adapt
from .errors import cannot_connect

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
        usual = KEEPALIVES | writable | {"application_name": "holdfast"}
        conninfo = make_conninfo(**(usual | parts | {"client_encoding": "UTF8"}))  # type: ignore[arg-type]
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
    begun: int
    """When the session began, by which it differs from others with its process id."""
    event_bound: int
    """The first id that an event can have that the session writes."""


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


def incarnation_of(driver: Driver) -> int | None:
    """Return the incarnation of the server when this connection was opened."""
    return getattr(driver, "incarnation", None)
