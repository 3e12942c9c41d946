"""The connections of a process: open them, know what kind of sessions they are, and share them among threads.

A pooler may give each transaction to another session of the server, and the same session to other programs. It is
found out by itself: the process that the pooler names is not the one that runs the statements. Then nothing belongs
to a session: no LISTEN, no lock, no setting, no prepared statement. What a transaction needs is set in it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import psycopg

from ...errors import CannotOpen, ReadOnlyDatabase, StoreBusy, StoreClosed
from .connection import ServerSession, abandon, connect, is_usable, prepare_session, rollback, session_of, target
from .dialect import Driver, Handle
from .errors import cannot_connect
from .transaction import LentDriver

if TYPE_CHECKING:
    from ..statements import Statements

MAX_CONNECTIONS = 3  # and one of the listener
BOUND_SECONDS = 60.0
CLOCK_LOOKS = 3  # of which the fastest counts: the first one in a session is slow
LARGEST_SLIP = 100_000  # microseconds; if the clock goes back by more, it was set
OWN_SETTINGS = {"holdfast.notify": "off", "jit": "off"}


class ServerClock:
    """The clock of the server, carried on by the monotonic clock of this process. Implements Clock.

    All processes on one database then agree about the time, whatever the clocks of their machines say. Leases are
    times of this clock, too: machines have no other one in common. A step of the server's clock is noticed when the
    process connects again.

    No two answers of `now` are the same, so an enqueue of this process is known by its time.
    """

    def __init__(self) -> None:
        self._last, self._lock = 0, threading.Lock()
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._error: int | None = None  # how wrong the offset may be, in microseconds; None: not told yet

    def set(self, server_now: int, sent_ns: int, received_ns: int) -> None:
        """Set it to what the server told, unless an earlier answer agrees with this one and came faster.

        sent_ns, received_ns: on the monotonic clock.
        """
        offset, error = server_now - (sent_ns + received_ns) // 2000, (received_ns - sent_ns) // 2000
        if self._error is None or error < self._error or abs(offset - self._offset) > error + self._error:
            self._offset, self._error = offset, error

    def now(self) -> int:
        with self._lock:
            now = self.boot_now()
            if 0 <= self._last - now < LARGEST_SLIP:
                now = self._last + 1
            self._last = now
        return now

    def boot_now(self) -> int:
        return self._offset + time.monotonic_ns() // 1000

    def boot_id(self) -> str:
        return "server"


class SessionOpener:
    def __init__(self, url: str, sql: Statements, clock: ServerClock) -> None:
        self.where = target(url)
        self.is_pooled = self.is_standby = self.is_flushed = False
        self.was_reached = False  # a connection was opened before, so the URL is right
        self._sql, self._clock = sql, clock

    @property
    def has_sessions(self) -> bool:
        """Whether a connection can listen, and hold locks that others rely on."""
        return not self.is_pooled and not self.is_standby

    def connect(self, lock_seconds: float) -> LentDriver:
        driver = connect(self.where, LentDriver)
        assert isinstance(driver, LentDriver)
        settings = OWN_SETTINGS | {"lock_timeout": _milliseconds(lock_seconds)}
        self._prepare(driver, settings)
        return driver

    def connect_listener(self) -> Driver | None:
        """Return a connection that can listen, or None: the server has no such sessions."""
        if not self.has_sessions:
            return None
        driver = connect(self.where, LentDriver)
        self._prepare(driver, OWN_SETTINGS | {"synchronous_commit": "off"})
        if not self.has_sessions:
            driver.close()
            return None
        return driver

    def _prepare(self, driver: Driver, settings: dict[str, str]) -> None:
        try:
            session = session_of(driver, self._sql.session)
            self._note(session)
            self._clock.set(*min((self._ask_clock(driver) for _ in range(CLOCK_LOOKS)), key=_round_trip))
            if isinstance(driver, LentDriver):
                driver.incarnation = session.incarnation
                driver.pid, driver.begun = driver.info.backend_pid, session.begun
                driver.event_bound, driver.bound_at = session.event_bound, monotonic()
            prepare_session(driver, session, settings)
        except psycopg.Error as error:
            driver.close()
            raise cannot_connect(error, self.where.shown) from None

    def _ask_clock(self, driver: Driver) -> tuple[int, int, int]:
        """Return the clock of the server, and when it was asked and answered, on the monotonic clock."""
        sent = time.monotonic_ns()
        (now,) = Handle(driver).execute(self._sql.server_clock).fetchone()
        return now, sent, time.monotonic_ns()

    def _note(self, session: ServerSession) -> None:
        self.is_pooled, self.is_standby = session.is_pooled, session.is_standby
        self.is_flushed, self.was_reached = session.is_flushed, True

    def begin(self, driver: Driver, *, relaxed: bool, lock_seconds: float | None) -> str:
        """Begin a transaction that writes, in one message. Return its id, by which its outcome can be asked.

        relaxed: its commit does not wait until it is on disk. lock_seconds: None for those of the connection.
        """
        parts = ["BEGIN"]
        if relaxed:
            parts.append("SET LOCAL synchronous_commit = off")
        elif self.is_pooled and not self.is_flushed:
            parts.append("SET LOCAL synchronous_commit = on")
        if self.is_pooled:
            parts += [f"SET LOCAL {name} = '{value}'" for name, value in OWN_SETTINGS.items()]
        if lock_seconds is not None:
            parts.append(f"SET LOCAL lock_timeout = {_milliseconds(lock_seconds)}")
        cursor = psycopg.Cursor(driver)
        cursor.execute("; ".join([*parts, "SELECT pg_current_xact_id()::text"]), prepare=False)
        while cursor.nextset():
            pass
        (transaction,) = cursor.fetchone() or ("",)
        return str(transaction)

    def move_event_bound(self, driver: LentDriver) -> None:
        """Ask now and then from which id on the events of a connection are, so that one is found soon."""
        if monotonic() - driver.bound_at > BOUND_SECONDS:
            (driver.event_bound,) = Handle(driver).execute(self._sql.event_bound).fetchone()
            driver.bound_at = monotonic()

    def is_outage(self, error: CannotOpen) -> bool:
        """Return whether a connection that could not be opened may be opened later."""
        return self.was_reached and not isinstance(error, ReadOnlyDatabase)


def _round_trip(look: tuple[int, int, int]) -> int:
    _, sent_ns, received_ns = look
    return received_ns - sent_ns


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


class Pool:
    """Lends each connection to one thread at a time. Broken ones are replaced when they are needed next."""

    def __init__(self, connect: Callable[[], LentDriver], size: int = MAX_CONNECTIONS) -> None:
        self._connect, self._size = connect, size
        self._free: list[LentDriver] = []
        self._all: set[LentDriver] = set()
        self._pid = os.getpid()
        self._open = 0
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def lend(self, timeout: float) -> Iterator[LentDriver]:
        """Lend a connection. At the end of the block it is in no transaction."""
        driver = self._take(timeout)
        try:
            yield driver
        finally:
            self._give_back(driver)

    def _take(self, timeout: float) -> LentDriver:
        deadline = monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise StoreClosed("this Holdfast was closed: make a new one")
                while self._free:
                    driver = self._free.pop()
                    if is_usable(driver):
                        return driver
                    driver.close()
                    self._all.discard(driver)
                    self._open -= 1
                if self._open < self._size:
                    self._open += 1
                    break
                if not self._changed.wait(max(0.0, deadline - monotonic())):
                    raise StoreBusy(
                        f"all {self._size} connections of this process are in use: end transactions sooner, or raise "
                        "busy_timeout"
                    )
        try:
            driver = self._connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise
        self._all.add(driver)
        return driver

    def _give_back(self, driver: LentDriver) -> None:
        if os.getpid() != self._pid:  # it was lent when the process forked, and belongs to the parent
            return
        rollback(driver)
        with self._changed:
            if self._closed or driver.closed:
                driver.close()
                self._all.discard(driver)
                self._open -= 1
            else:
                self._free.append(driver)
            self._changed.notify()

    def close(self) -> None:
        """Close all connections. Those that are lent are closed when they come back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for driver in free:
            driver.close()

    def abandon(self) -> None:
        """In a forked child: let go of the connections of the parent."""
        for driver in list(self._all):
            abandon(driver)
