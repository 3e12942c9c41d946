"""Open the connections of a process, and know what kind of sessions it gets.

A pooler may give each transaction to another session of the server, and the same session to other programs. It is
found out by itself: the process that the pooler names is not the one that runs the statements. Then nothing belongs
to a session: no LISTEN, no lock, no setting, no prepared statement. What a transaction needs is set in it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from ...errors import CannotOpen, ReadOnlyDatabase
from .connection import Driver, Handle, ServerSession, connect, prepare_session, session_of, target
from .errors import cannot_connect
from .transaction import LentDriver

if TYPE_CHECKING:
    from ..statements import Statements
    from .server_clock import ServerClock

CLOCK_LOOKS = 3  # of which the fastest counts: the first one in a session is slow
OWN_SETTINGS = {"holdfast.notify": "off", "jit": "off"}


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

    def is_outage(self, error: CannotOpen) -> bool:
        """Return whether a connection that could not be opened may be opened later."""
        return self.was_reached and not isinstance(error, ReadOnlyDatabase)


def _round_trip(look: tuple[int, int, int]) -> int:
    _, sent_ns, received_ns = look
    return received_ns - sent_ns


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
